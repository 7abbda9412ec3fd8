"""Whole documents by the id of one of their passages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import LONGEST_DOCUMENT, DocumentLookup
from retrieval.folder import OFFSETS, PASSAGES
from retrieval.passages import (
    Passages,
    join_contents,
    passage_line,
    shown,
    split_contents,
    unique,
    write_passages,
)
from scope_selfplay.base.errors import CorpusError, RecordError
from scope_selfplay.base.values import Document

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def write(folder: Path, documents: list[Document]) -> Passages:
    _, corpus_hash = write_passages(documents, folder)
    return Passages.open(folder, corpus_hash)


@given(words, words)
def test_title_and_text_survive_being_joined(title: str, text: str) -> None:
    again = split_contents(join_contents(title, text))
    assert again == (" ".join(title.split()), text)


@given(words, words)
def test_the_shown_line_stays_json_and_loses_only_doubled_quotes_of_the_text(title: str, text: str) -> None:
    line = passage_line(Document(id='"contents": "x', title=title, text=text))
    contents = split_contents(json.loads(shown(line))["contents"])
    assert contents == (" ".join(title.split()), text.replace('""', '"'))


def test_mapped_passages_equal_the_ones_in_memory(tmp_path: Path, coast: list[Document]) -> None:
    mapped, held = write(tmp_path, coast), Passages.from_documents(coast)
    assert mapped.corpus_hash == held.corpus_hash
    assert [mapped.line(row) for row in range(6)] == [held.line(row) for row in range(6)]
    assert mapped.document(1).title == "Aldmoor"


def test_a_crash_while_writing_leaves_no_passages_behind(tmp_path: Path, coast: list[Document]) -> None:
    def interrupted() -> Iterator[Document]:
        yield coast[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_passages(interrupted(), tmp_path)
    assert not (tmp_path / PASSAGES).exists()


def test_a_cut_passage_file_is_refused_when_it_is_opened(tmp_path: Path, coast: list[Document]) -> None:
    write(tmp_path, coast)
    path = tmp_path / PASSAGES
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordError, match="do not match"):
        Passages.open(tmp_path, "")


def test_missing_offsets_are_an_error_with_the_folder(tmp_path: Path, coast: list[Document]) -> None:
    write(tmp_path, coast)
    (tmp_path / OFFSETS).unlink()
    with pytest.raises(RecordError, match=str(tmp_path)):
        Passages.open(tmp_path, "")


def test_a_damaged_passage_is_an_error_with_its_line(tmp_path: Path, coast: list[Document]) -> None:
    write(tmp_path, coast)
    path = tmp_path / PASSAGES
    path.write_bytes(path.read_bytes().replace(b'"id": "aldmoor"', b'"id": "aldmoor '))
    with pytest.raises(RecordError, match=r"passages.jsonl:2"):
        Passages.open(tmp_path, "").document(1)


def test_an_id_given_twice_is_refused_with_its_place() -> None:
    documents = [Document(id=name, title="", text="x") for name in ("a", "b", "a")]
    with pytest.raises(CorpusError, match="passage 3: id 'a' appears twice"):
        list(unique(documents))


@pytest.mark.parametrize(
    "document",
    [
        Document(id="", title="", text="x"),
        Document(id="x" * 257, title="", text="x"),
        Document(id="half", title="", text="\ud800"),
        Document(id="long", title="", text="x" * (1 << 20)),
    ],
)
def test_a_document_that_cannot_be_a_passage_is_refused(document: Document) -> None:
    with pytest.raises(CorpusError):
        passage_line(document)


def test_an_empty_corpus_can_be_written_and_opened(tmp_path: Path) -> None:
    assert write(tmp_path, []).size == 0


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
