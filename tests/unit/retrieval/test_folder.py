"""Index folders: a manifest that fits its files, passages, and whole documents by the id of one of their passages."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.build import build_bm25
from retrieval.corpus import LONGEST_DOCUMENT, DocumentLookup
from retrieval.folder import (
    MANIFEST,
    OFFSETS,
    PASSAGES,
    IndexManifest,
    Passages,
    Verify,
    join_contents,
    passage_line,
    read_manifest,
    shown,
    split_contents,
    unique,
    write_passages,
)
from scope_selfplay.base.errors import CorpusError, RecordError
from scope_selfplay.base.values import Document


@pytest.fixture
def built(tmp_path: Path, coast: list[Document]) -> IndexManifest:
    return build_bm25(coast, tmp_path)


def test_every_flipped_bit_is_found(tmp_path: Path, built: IndexManifest) -> None:
    draw = random.Random(5)
    for name in built.files:
        path = tmp_path / name
        intact = path.read_bytes()
        data = bytearray(intact)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with pytest.raises(RecordError, match=f"{name}: damaged"):
            read_manifest(tmp_path)
        path.write_bytes(intact)
    assert read_manifest(tmp_path, Verify.FULL) == built


def test_a_cut_file_is_found_by_its_size_alone_and_an_unfinished_folder_is_no_index(
    tmp_path: Path, built: IndexManifest
) -> None:
    path = tmp_path / "indices.csc.index.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match="the manifest says"):
        read_manifest(tmp_path, Verify.SIZES)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(RecordError, match="has not finished"):
        read_manifest(tmp_path)


def test_an_index_of_another_corpus_is_refused(
    tmp_path: Path, built: IndexManifest, coast: list[Document]
) -> None:
    other = build_bm25(coast[::-1], tmp_path / "b")
    mixed = built.model_copy(update={"files": {**built.files, PASSAGES: other.files[PASSAGES]}})
    (tmp_path / PASSAGES).write_bytes((tmp_path / "b" / PASSAGES).read_bytes())
    (tmp_path / MANIFEST).write_text(mixed.model_dump_json())
    with pytest.raises(RecordError, match="another corpus"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"index_hash": "0"}, "does not follow"),
        ({"rows": 0}, "damaged"),
        ({"nprobe": 7}, "does not follow"),
        ({"refine": 8.0}, "does not follow"),
        ({"encoder_hash": "e" * 64}, "does not follow"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_refused(
    tmp_path: Path, built: IndexManifest, change: dict[str, object], message: str
) -> None:
    (tmp_path / MANIFEST).write_text(built.model_copy(update=change).model_dump_json())
    with pytest.raises(RecordError, match=message):
        read_manifest(tmp_path)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(words, words)
def test_a_line_keeps_title_and_text_and_is_json_without_doubled_quotes(title: str, text: str) -> None:
    assert split_contents(join_contents(title, text)) == (" ".join(title.split()), text)
    line = passage_line(Document(id='"contents": "x', title=title, text=text))
    contents = split_contents(json.loads(shown(line))["contents"])
    assert contents == (" ".join(title.split()), text.replace('""', '"'))


def test_damaged_passages_are_an_error_with_their_place(tmp_path: Path, coast: list[Document]) -> None:
    write_passages(coast, tmp_path)
    path = tmp_path / PASSAGES
    intact = path.read_bytes()
    path.write_bytes(intact.replace(b'"id": "aldmoor"', b'"id": "aldmoor '))
    with pytest.raises(RecordError, match=r"passages.jsonl:2"):
        Passages.open(tmp_path).document(1)
    path.write_bytes(intact[:-5])
    with pytest.raises(RecordError, match="do not match"):
        Passages.open(tmp_path)
    (tmp_path / OFFSETS).unlink()
    with pytest.raises(RecordError, match=str(tmp_path)):
        Passages.open(tmp_path)


def test_a_document_that_cannot_be_a_passage_is_refused() -> None:
    documents = [Document(id=name, title="", text="x") for name in ("a", "b", "a")]
    with pytest.raises(CorpusError, match="passage 3: id 'a' appears twice"):
        list(unique(documents))
    for name, text in (("", "x"), ("x" * 257, "x"), ("half", "\ud800"), ("long", "x" * (1 << 20))):
        with pytest.raises(CorpusError):
            passage_line(Document(id=name, title="", text=text))


PIECES = [
    Document(id=f"{title}-{number}", title=title, text=f"{title} {number}.")
    for title in ("Orsk", "Ana Reyes", "Verrin")
    for number in range(3)
]


def lookup(documents: list[Document]) -> DocumentLookup:
    return DocumentLookup(Passages.from_documents(documents))


def test_any_passage_of_a_document_gives_all_of_it() -> None:
    for passage in PIECES[3:6]:
        whole = passage.model_copy(update={"text": "Ana Reyes 0. Ana Reyes 1. Ana Reyes 2."})
        assert lookup(PIECES).document(passage.id) == whole
    untitled = [Document(id=f"p{row}", title="", text=f"text {row}") for row in range(3)]
    assert lookup(untitled).document("p1") == untitled[1], (
        "passages without a title are documents of their own"
    )


def test_ids_that_are_numbers_are_found_whatever_they_count_from() -> None:
    for first in (0, 1, 40):
        pieces = [Document(id=str(first + row), title=f"t{row}", text=f"text {row}") for row in range(5)]
        assert [lookup(pieces).document(piece.id) for piece in pieces] == pieces
        assert lookup(pieces).document(str(first + 5)) is None


def test_an_id_that_the_corpus_has_not_is_none_and_a_document_is_bounded() -> None:
    for passage_id in ("", "nothing", "Orsk", "Orsk-3", "-1", "١", "x" * 300, "Orsk-0\x00"):
        assert lookup(PIECES).document(passage_id) is None
    pieces = [Document(id=f"p{row}", title="long", text="x" * 1000) for row in range(900)]
    found = lookup(pieces).document("p400")
    assert found is not None and len(found.text) == LONGEST_DOCUMENT
