"""A shard says which rows of which source it holds; a router merges all rows of one source, once and in order."""

from pathlib import Path
from typing import Any

import pytest

from retrieval.build import Recipe, build_bm25
from retrieval.index_folder import SourceRows, read_manifest
from retrieval.router import common_info
from scope_selfplay.errors import CorpusError, RunMismatchError
from scope_selfplay.schemas import Document

DOCUMENTS = [Document(id=str(row), title="", text=f"word{row}") for row in range(10)]


def rows_of(folder: Path, rows: str, **recipe: Any) -> SourceRows:
    given = Recipe(profile="bm25", source="x", source_bytes=1, source_hash="s", rows=rows, **recipe)
    build_bm25(iter(DOCUMENTS), folder, given)
    found = read_manifest(folder).source_rows
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rows", "first", "end", "total"),
    [("", 0, 10, 10), ("0:4", 0, 4, None), ("4:10", 4, 10, 10), ("4:", 4, 10, 10), ("7:99", 7, 10, 10)],
)
def test_the_manifest_says_which_rows_and_whether_the_source_ends_with_them(
    tmp_path: Path, rows: str, first: int, end: int, total: int | None
) -> None:
    found = rows_of(tmp_path, rows)
    assert (found.first, found.end, found.total) == (first, end, total)


def test_rows_of_other_chunks_are_rows_of_another_source(tmp_path: Path) -> None:
    whole, cut = rows_of(tmp_path / "a", ""), rows_of(tmp_path / "b", "", chunk_tokens=5)
    assert whole.source != cut.source == rows_of(tmp_path / "c", "3:", chunk_tokens=5).source


def test_rows_beyond_the_source_are_not_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no document in rows 10:12"):
        rows_of(tmp_path, "10:12")


def infos_of(*records: dict[str, Any] | None) -> list[dict[str, Any]]:
    """/info of shards that agree in everything but their rows."""
    return [
        {"identity": f"i{n}", "kind": "dense", "rows": 1, "corpus_hash": str(n), "source_rows": record}
        for n, record in enumerate(records)
    ]


def held(first: int, end: int, total: int | None = None, source: str = "s") -> dict[str, Any]:
    return {"source": source, "first": first, "end": end, "total": total}


def test_all_rows_in_order_are_merged() -> None:
    assert common_info(infos_of(held(0, 7), held(7, 15), held(15, 20, 20)))["rows"] == 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([held(0, 7), held(7, 15)], "the source goes on after row 15"),
        ([held(7, 15), held(15, 20, 20)], "rows 7:15 15:20: one that begins with row 0"),
        ([held(0, 7), held(15, 20, 20)], "one that begins with row 7 was expected"),
        ([held(0, 7), held(5, 20, 20)], "rows 0:7 5:20: one that begins with row 7"),
        ([held(7, 20, 20), held(0, 7)], "in order"),
        ([held(0, 7), held(0, 7), held(7, 20, 20)], "one that begins with row 7"),
        ([held(0, 7), held(7, 20, 20, source="t")], "not of one source"),
        ([held(0, 7), {"first": -1}], "cannot be read"),
    ],
)
def test_missing_overlapping_or_unordered_rows_are_refused(
    records: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(RunMismatchError, match=message):
        common_info(infos_of(*records))


@pytest.mark.parametrize("records", [(None, None), (held(0, 7), None)])
def test_shards_that_were_built_without_a_source_are_merged_as_given_with_a_warning(
    records: tuple[dict[str, Any] | None, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert common_info(infos_of(*records))["rows"] == 2
    assert "were built without a source file" in capsys.readouterr().err
