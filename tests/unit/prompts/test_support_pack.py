"""The second domain: product documentation, with tasks, gates and rubrics that differ in kind."""

from pathlib import Path

import pytest

from scope_selfplay.base.values import Document
from scope_selfplay.corpus.read import read_documents
from scope_selfplay.prompts.folder import load_pack, pack_origins
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from tests.unit.prompts.packs import PROMPTS

PAGES = Path(__file__).resolve().parents[2] / "fixtures" / "support_docs"

SHARED = {
    PromptRole.CHALLENGER_INVALID,
    PromptRole.CHALLENGER_FINAL,
    PromptRole.COMPARE_SCORES,
    PromptRole.COMPARE_PREFERENCE,
    PromptRole.COMPARE_ANSWERS,
    PromptRole.SELECT,
    PromptRole.SCORE_IMPLICIT,
    PromptRole.SCORE_EXPLICIT,
    PromptRole.SCORE_ANSWER,
    PromptRole.SCORE_CORRECTNESS,
    PromptRole.SCORE_PROOF,
    PromptRole.SCORE_REFERENCE,
}
"""Protocol and comparisons, which speak of no kind of task."""


@pytest.fixture(scope="module")
def support() -> Pack:
    return load_pack(PROMPTS / "support")


@pytest.fixture(scope="module")
def documents(support: Pack) -> list[Document]:
    return read_documents(PAGES, support.domain.corpus_reader)


def test_the_support_pack_is_complete_and_inherits_only_what_is_shared(support: Pack) -> None:
    assert support.roles == tuple(PromptRole)
    inherited = {each.what for each in pack_origins(PROMPTS / "support") if "inherited" in each.reason}
    assert inherited == {"task_types.creative_writing", *(role.file_name for role in SHARED)}


def test_the_challenger_reads_a_section_with_its_product(support: Pack, documents: list[Document]) -> None:
    kind = next(kind for kind in support.domain.task_types if kind.enabled)
    text = support.render(
        PromptRole.CHALLENGER,
        document_title=documents[1].title,
        document_text=documents[1].text,
        task_type=kind.name,
        task_description=kind.description,
        search_turns=1,
        search_syntax="<search>...</search>",
    )
    assert documents[1].title in text and documents[1].text in text and "**diagnose**" in text
