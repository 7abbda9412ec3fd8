"""Whole documents by the id of one of their passages."""

import pytest

from retrieval.corpus import LONGEST_DOCUMENT, DocumentLookup
from retrieval.passages import Passages
from scope_selfplay.base.values import Document

PIECES = [
    Document(id=f"{title}-{number}", title=title, text=f"{title} {number}.")
    for title in ("Orsk", "Ana Reyes", "Verrin")
    for number in range(3)
]


def lookup(documents: list[Document]) -> DocumentLookup:
    return DocumentLookup(Passages.from_documents(documents))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_passage_of_a_document_gives_all_of_it(number: int) -> None:
    found = lookup(PIECES).document(f"Ana Reyes-{number}")
    assert found == Document(
        id=f"Ana Reyes-{number}", title="Ana Reyes", text="Ana Reyes 0. Ana Reyes 1. Ana Reyes 2."
    )


@pytest.mark.parametrize("first", [0, 1, 40])
def test_ids_that_are_numbers_are_found_whatever_they_count_from(first: int) -> None:
    pieces = [Document(id=str(first + row), title=f"t{row}", text=f"text {row}") for row in range(5)]
    for piece in pieces:
        assert lookup(pieces).document(piece.id) == piece
    assert lookup(pieces).document(str(first + 5)) is None


@pytest.mark.parametrize("passage_id", ["", "nothing", "Orsk", "Orsk-3", "-1", "١", "x" * 300, "Orsk-0\x00"])
def test_an_id_that_the_corpus_has_not_is_none(passage_id: str) -> None:
    assert lookup(PIECES).document(passage_id) is None


def test_passages_without_a_title_are_documents_of_their_own() -> None:
    pieces = [Document(id=f"p{row}", title="", text=f"text {row}") for row in range(3)]
    assert lookup(pieces).document("p1") == pieces[1]


def test_a_document_is_bounded() -> None:
    pieces = [Document(id=f"p{row}", title="long", text="x" * 1000) for row in range(900)]
    found = lookup(pieces).document("p400")
    assert found is not None and len(found.text) == LONGEST_DOCUMENT
