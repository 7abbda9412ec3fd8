"""docs/real-model.md shows the tables of the results that the repository keeps, and the kept results are whole."""

from pathlib import Path

import pytest

from benchmarks.real_model.kept import KEPT, held_out_questions, read_kept
from benchmarks.real_model.page import gain, marks_around, sections

PAGE = Path(__file__).parents[2] / "docs" / "real-model.md"


@pytest.mark.parametrize(("section", "text"), sections().items())
def test_the_page_has_the_tables_of_what_is_kept(section: str, text: str) -> None:
    opening, closing = marks_around(section)
    shown = PAGE.read_text(encoding="utf-8").partition(opening)[2].partition(closing)[0]
    assert shown.strip() == text, "python -m benchmarks.real_model --parts --keep writes the page"


def test_every_seed_is_kept_whole() -> None:
    kept = read_kept()
    assert [each.training.seed for each in kept] == [1, 2, 3]
    for each in kept:
        assert [row.id for row in each.answered] == list(held_out_questions()) and len(
            each.training.steps
        ) == 16


def test_the_last_solver_beats_its_start_in_at_least_two_of_three_seeds() -> None:
    """The goal, for greedy and for sampled answers: an interval above zero."""
    for way in ("greedy", "sampled"):
        gains = [gain(getattr(each, way)(0), getattr(each, way)(1), "exact") for each in read_kept()]
        assert sum(each.low is not None and each.low > 0 for each in gains) >= 2


def test_what_is_kept_is_small() -> None:
    assert sum(path.stat().st_size for path in KEPT.iterdir()) < 300_000
