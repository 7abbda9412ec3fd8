import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import chunked, read_documents
from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document


def read(path: Path) -> list[tuple[str, str, str]]:
    return [(document.id, document.title, document.text) for document in read_documents(path)]


def test_wiki18_and_plain_lines_give_the_same_documents(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    lines = [
        {"id": "0", "contents": '"Aldmoor"\nA town.'},
        {"id": 1, "title": "Aldmoor", "text": "A town.", "url": "ignored"},
        {"text": "no title"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read(path) == [("0", "Aldmoor", "A town."), ("1", "Aldmoor", "A town."), ("2", "", "no title")]


def test_parquet_reads_like_json_lines(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"id": "a", "title": "T", "text": "x"}, {"id": "b", "title": "T", "text": "y"}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet") == [("a", "T", "x"), ("b", "T", "y")]
    data = (tmp_path / "c.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(CorpusError, match=r"cut\.parquet"):
        read(tmp_path / "cut.parquet")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"id": true, "text": "x"}\n', '"id" must be text, found true or false'),
        ("a.tsv", b"id\ttext\ttitle\n1\tx\n", "a.tsv, line 2: 2 columns"),
        ("a.tsv", b'1\t"open quote\tT\n', "a.tsv, line 1"),
        ("a.tsv.gz", b"not gzip", "cannot be read"),
        ("a.tsv.gz", gzip.compress(b"1\tx\tT\n" * 9999, mtime=0)[:-20], "cannot be read"),
        # The first block is of a kind that does not exist.
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\x07" * 9, "cannot be read: Error"),
        ("a.jsonl.gz", gzip.compress(b" " * (1 << 25), mtime=0), "line of more than"),
    ],
)
def test_a_damaged_source_is_named_with_its_line(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=message):
        read(tmp_path / name)


@given(st.lists(st.sampled_from(["word", "end.", "x", "stop!\n"]), max_size=80), st.integers(1, 20))
def test_every_word_lands_in_a_chunk_of_the_allowed_size(words: list[str], size: int) -> None:
    document = Document(id="d", title="T", text=" ".join(words))
    chunks = list(chunked([document], size))
    assert all(1 <= len(chunk.text.split()) <= size and chunk.title == "T" for chunk in chunks)
    assert all(chunk.text in document.text for chunk in chunks)
    assert [word for chunk in chunks for word in chunk.text.split()] == " ".join(words).split()
