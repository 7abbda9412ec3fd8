"""`docs/papers.md` stays true: every file and every test that its tables name exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
PAPERS = ("SCOPE", "Tournament-GRPO", "ArenaRL", "Reasoning Arena")
HEADER = ["mechanism", "paper", "code", "test", "deviation"]


class Row(NamedTuple):
    """One mechanism; `code` and `test` are what stands between backticks in these cells."""

    paper: str
    mechanism: str
    code: list[str]
    test: list[str]
    deviation: str


def rows_of(paper: str, page: str = PAGE) -> Iterator[Row]:
    section = re.search(rf"^## {re.escape(paper)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/papers.md has no section {paper!r}"
    header, _, *lines = [line for line in section[1].splitlines() if line.startswith("|")]
    assert _cells(header) == HEADER, paper
    for line in lines:
        cells = _cells(line)
        assert len(cells) == len(HEADER), f"{paper}: {line}"
        mechanism, _, code, test, deviation = cells
        yield Row(paper, mechanism, re.findall(r"`([^`]+)`", code), re.findall(r"`([^`]+)`", test), deviation)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


@cache
def names_of_tests(file: str) -> frozenset[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def faults_of(row: Row) -> list[str]:
    """What is wrong with a row, in words; empty where nothing is."""
    explained = row.deviation not in ("", "none")
    faults = [f"there is no {file}" for file in row.code if not (ROOT / file).exists()]
    for place in row.test:
        file, _, name = place.partition("::")
        if not (ROOT / file).is_file():
            faults.append(f"there is no {file}")
        elif name and name not in names_of_tests(file):
            faults.append(f"{file} has no test {name}")
    if not (row.code and row.test) and not explained:
        faults.append("no code or no test, and no reason")
    if not row.deviation:
        faults.append("the deviation is empty; write none")
    return faults


ROWS = [row for paper in PAPERS for row in rows_of(paper)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}: {row.mechanism}")
def test_a_mechanism_is_where_the_page_says(row: Row) -> None:
    assert faults_of(row) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_mechanisms_and_none_twice(paper: str) -> None:
    mechanisms = [row.mechanism for row in rows_of(paper)]
    assert mechanisms and len(set(mechanisms)) == len(mechanisms)
