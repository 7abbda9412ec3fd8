"""Intervals hold what they promise: in simulations of what benchmarks measure, at the edges, and of Cohen's kappa."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from scope_selfplay.base.intervals import (
    DIFFERENCES,
    MANY_ITEMS,
    Estimate,
    estimate_mean,
    estimate_order,
    percentiles,
)
from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks


def estimated(values: Sequence[float], **more: Any) -> Estimate:
    found = estimate_mean(values, seed=0, **more)
    assert found is not None
    return found


def test_few_items_say_so_and_one_has_no_interval() -> None:
    one, few, many = (estimated([0.5] * count) for count in (1, 19, 20))
    assert (one.low, one.high, one.note) == (None, None, "one item: no interval")
    assert (few.note, many.note) == ("only 19 items", "")
    assert few.ends[0] < 0.5 < few.ends[1]
    assert estimate_mean([], seed=0) is None


def test_a_difference_of_right_and_wrong_has_the_published_interval() -> None:
    """Airway reactivity of 21 children: 1 against 7 is [-0.517, -0.026] (Fagerland, Lydersen and Laake, 2014)."""
    found = estimated([1.0] + [-1.0] * 7 + [0.0] * 13, bounds=DIFFERENCES)
    assert found.ends == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_twenty_right_answers_do_not_prove_that_all_are() -> None:
    """Wilson's: 20 of 20 leave [0.839, 1]; and of 20 that all differ by nothing, one in six might differ."""
    assert estimated([1.0] * 20).ends == (pytest.approx(0.8389, abs=1e-4), 1.0)
    low, high = estimated([0.0] * 20, bounds=DIFFERENCES).ends
    assert low == pytest.approx(-high) and 0.15 < high < 0.17
    assert estimated([0.6] * 20).low == pytest.approx(0.6 - 0.6 * (1 - 0.025 ** (1 / 20)))


def test_resampling_and_the_normal_limit_agree_where_one_takes_over() -> None:
    values = list(np.random.default_rng(0).beta(0.5, 2.0, MANY_ITEMS + 1))
    few, many = (estimated(values[:count], resamples=4000, bounds=None) for count in (MANY_ITEMS, None))
    assert few.ends == pytest.approx(many.ends, abs=1e-3)


def test_more_looks_make_wider_intervals() -> None:
    values = list(np.random.default_rng(0).random(50))
    found = (estimated(values, resamples=4000, looks=looks) for looks in (1, 2, 5))
    widths = [each.ends[1] - each.ends[0] for each in found]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    assert percentiles(10**6) == pytest.approx((2.5, 97.5), abs=1e-3)
    assert percentiles(10**6, looks=5) == pytest.approx((0.5, 99.5), abs=1e-3)


@pytest.mark.parametrize("apart", [0.95, 1.8])
def test_the_order_of_two_samples_is_as_uncertain_as_both(apart: float) -> None:
    """Scores that lie .95 or 1.8 standard deviations apart are in order in 75 or 90 % of the pairs."""
    rng, truth = np.random.default_rng(0), float(ndtr(apart / 2**0.5))
    missed = 0
    for _ in range(400):
        yes, no = rng.normal(apart, size=20), rng.normal(size=20)
        low, high = estimate_order((yes[:, None] > no).astype(float).tolist()).ends
        missed += not low <= truth <= high
    assert missed / 400 < 0.07
    whole = estimate_order([[1.0] * 20] * 3)
    assert (whole.value, whole.items) == (1.0, 3) and whole.ends[0] < 0.5


def labels(*counts: tuple[bool, bool, int]) -> list[Labels]:
    """So many questions, each of a task of its own, to which judge and person said this."""
    pairs = [(judge, person) for judge, person, count in counts for _ in range(count)]
    return [Labels(f"task-{row}", judge, person) for row, (judge, person) in enumerate(pairs)]


def test_kappa_is_that_of_cohens_worked_example() -> None:
    # 20 both yes, 15 both no, 5 judge alone, 10 person alone: p_o 0.7, p_e 0.5 (a textbook example).
    counts = ((True, True, 20), (False, False, 15), (True, False, 5), (False, True, 10))
    found = kappa_over_tasks(labels(*counts))
    assert found is not None and found.value == pytest.approx(0.4)
    assert found.ends[0] < 0.4 < found.ends[1]


def test_questions_of_one_task_count_as_one_draw() -> None:
    apart = labels((True, True, 12), (False, False, 12), (True, False, 6), (False, True, 6))
    together = [each._replace(task=f"task-{row % 4}") for row, each in enumerate(apart)]
    one, few = kappa_over_tasks(apart), kappa_over_tasks(together)
    alone = kappa_over_tasks([each._replace(task="one") for each in apart])
    assert one is not None and few is not None and alone is not None
    assert one.value == few.value and one.high != few.high and alone.low is None
