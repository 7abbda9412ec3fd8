"""Records that faults lost, doubled or changed are counted apart, and the page has the counts of every fault."""

import re
from pathlib import Path

import pytest

from benchmarks.faults.counting import FAULTS, FaultCounts

REPOSITORY = Path(__file__).parents[2]


def test_records_that_are_lost_doubled_and_changed_are_told_apart() -> None:
    counts = FaultCounts({})
    expected = {"a.jsonl": b"1\n2\n3\n4\n", "weights": b"x"}
    counts.compare(expected, expected, tried=3)
    counts.compare(expected, {"a.jsonl": b"1\n1\n2\n9\n", "weights": b"y"})
    assert counts.values == {"tried": 4, "survived": 3, "lost": 1, "duplicated": 1, "wrong": 2}
    with pytest.raises(AssertionError):
        counts.check()


def test_the_page_shows_every_fault_survived() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    faults = [row for row in rows if len(row) == 9 and row[0].isdecimal()]
    assert [(int(row[0]), row[1]) for row in faults] == [
        (number, each.what) for number, each in FAULTS.items()
    ]
    for _, what, tried, survived, *harm, paid, tests in faults:
        assert tried == survived and set(harm) <= {"0", ""} and int(tests) > 0, what
        again, in_flight = map(int, re.findall(r"\d+", paid) or [0, 0])
        assert again <= in_flight, what
