"""Intervals hold what they promise: in simulations of what benchmarks measure, and at the edges."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.intervals import DIFFERENCES, MANY_ITEMS, SHARES, estimate_mean, percentiles

Rng = np.random.Generator
Draw = Callable[[Rng, int], np.ndarray]
TRIALS, RESAMPLES = 1500, 400
FEW = ", of few"
"""Names where so few items of 20 or 50 are unlike the rest that no interval holds the truth in 95 of 100: it can only
leave out whole outcomes, and that of no such item at all would be the first."""


def _bernoulli(chance: float) -> Draw:
    return lambda rng, items: (rng.random(items) < chance).astype(float)


def _of_four(easy: float, hard: float) -> Draw:
    """Four samples of each item, whose own chance is drawn from a beta distribution."""
    return lambda rng, items: rng.binomial(4, rng.beta(easy, hard, items)) / 4


def _f1(rng: Rng, items: int) -> np.ndarray:
    """Half of the answers share nothing with the right one, three tenths are right, the rest share a part."""
    kind = rng.random(items)
    return np.where(kind < 0.5, 0.0, np.where(kind < 0.8, 1.0, rng.random(items)))


def _discordant(better: float, worse: float) -> Draw:
    """Two checkpoints on the same items, right or wrong: the difference of each item."""

    def draw(rng: Rng, items: int) -> np.ndarray:
        kind = rng.random(items)
        return np.where(kind < better, 1.0, np.where(kind < better + worse, -1.0, 0.0))

    return draw


def _paired(same: float) -> Draw:
    """Differences of four samples each, of which so many items have none."""

    def draw(rng: Rng, items: int) -> np.ndarray:
        chance = rng.random(items)
        gaps = (rng.binomial(4, chance) - rng.binomial(4, 0.8 * chance)) / 4
        return np.where(rng.random(items) < same, 0.0, gaps)

    return draw


def _seldom_f1(rng: Rng, items: int) -> np.ndarray:
    kind = rng.random(items)
    return np.where(kind < 0.85, 0.0, np.where(kind < 0.92, 1.0, rng.random(items)))


MEASURED: list[tuple[str, Draw, float, tuple[float, float] | None]] = [
    ("right or wrong", _bernoulli(0.5), 0.5, SHARES),
    ("seldom right", _bernoulli(0.1), 0.1, SHARES),
    ("four samples", _of_four(0.5, 1.5), 0.25, SHARES),
    (f"four samples{FEW}", _of_four(0.2, 3.0), 0.0625, SHARES),
    ("four samples, nearly all right", _of_four(5.0, 0.5), 10 / 11, SHARES),
    ("a rubric of four", _of_four(2.0, 1.0), 2 / 3, SHARES),
    ("F1", _f1, 0.4, SHARES),
    ("F1, seldom right", _seldom_f1, 0.11, SHARES),
    ("marks that hardly vary", lambda rng, items: rng.beta(12.0, 8.0, items), 0.6, SHARES),
    ("a difference of right or wrong", _discordant(0.2, 0.1), 0.1, DIFFERENCES),
    (f"a difference of right or wrong{FEW}", _discordant(0.05, 0.02), 0.03, DIFFERENCES),
    ("a difference of four samples", _paired(0.0), 0.1, DIFFERENCES),
    (f"a difference of four samples{FEW}", _paired(0.8), 0.02, DIFFERENCES),
    ("a judge's margin", lambda rng, items: rng.normal(0.3, 1.0, items), 0.3, None),
]


@pytest.mark.integration
@pytest.mark.parametrize("items", [20, 50, 200])
@pytest.mark.parametrize(("name", "draw", "truth", "bounds"), MEASURED, ids=[row[0] for row in MEASURED])
def test_an_interval_holds_the_truth_in_95_of_100_evaluations(
    name: str, draw: Draw, truth: float, bounds: tuple[float, float] | None, items: int
) -> None:
    """95 ± 2 %, in a simulation that is seeded; more where few items differ."""
    rng = np.random.default_rng([items, len(name)])
    held = 0
    for trial in range(TRIALS):
        found = estimate_mean(list(draw(rng, items)), seed=trial, resamples=RESAMPLES, bounds=bounds)
        assert found is not None
        low, high = found.ends
        held += low - 1e-9 <= truth <= high + 1e-9

    most = 1.0 if name.endswith(FEW) and items < 200 else 0.97
    assert 0.93 <= held / TRIALS <= most


def test_few_items_say_so_and_one_has_no_interval() -> None:
    one, few, many = (estimate_mean([0.5] * count, seed=0) for count in (1, 19, 20))
    assert one is not None and few is not None and many is not None
    assert (one.low, one.high, one.note) == (None, None, "one item: no interval")
    assert (few.note, many.note) == ("only 19 items", "")
    assert few.low is not None and few.high is not None and few.low < 0.5 < few.high
    assert estimate_mean([], seed=0) is None


def test_a_difference_of_right_and_wrong_has_the_published_interval() -> None:
    """Airway reactivity of 21 children: 1 against 7 is [-0.517, -0.026] (Fagerland, Lydersen and Laake, 2014)."""
    found = estimate_mean([1.0] + [-1.0] * 7 + [0.0] * 13, seed=0, bounds=DIFFERENCES)
    assert found is not None and found.ends == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_twenty_right_answers_do_not_prove_that_all_are() -> None:
    """Wilson's: 20 of 20 leave [0.839, 1]; and of 20 that all differ by nothing, one in six might differ."""
    found = estimate_mean([1.0] * 20, seed=0)
    assert found is not None and found.low == pytest.approx(0.8389, abs=1e-4) and found.high == 1.0
    even = estimate_mean([0.0] * 20, seed=0, bounds=DIFFERENCES)
    assert even is not None and even.ends[0] == pytest.approx(-even.ends[1]) and 0.15 < even.ends[1] < 0.17
    equal = estimate_mean([0.6] * 20, seed=0)
    assert equal is not None and equal.low == pytest.approx(0.6 - 0.6 * (1 - 0.025 ** (1 / 20)))


def test_resampling_and_the_normal_limit_agree_where_one_takes_over() -> None:
    values = list(np.random.default_rng(0).beta(0.5, 2.0, MANY_ITEMS + 1))
    few, many = (
        estimate_mean(values[:count], seed=0, resamples=4000, bounds=None)
        for count in (MANY_ITEMS, MANY_ITEMS + 1)
    )
    assert few is not None and many is not None
    assert few.ends == pytest.approx(many.ends, abs=1e-3)


def test_more_looks_make_wider_intervals() -> None:
    values = list(np.random.default_rng(0).random(50))
    widths = [
        found.ends[1] - found.ends[0]
        for looks in (1, 2, 5)
        if (found := estimate_mean(values, seed=0, resamples=4000, looks=looks)) is not None
    ]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    assert percentiles(10**6) == pytest.approx((2.5, 97.5), abs=1e-3)
    assert percentiles(10**6, looks=5) == pytest.approx((0.5, 99.5), abs=1e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([SHARES, None]))
def test_an_interval_lies_in_the_range_of_the_values_and_holds_their_mean(
    values: list[float], bounds: tuple[float, float] | None
) -> None:
    found = estimate_mean(values, seed=0, resamples=200, bounds=bounds)
    assert found is not None and found.items == len(values)
    low, high = found.ends
    least, most = bounds or (min(values), max(values))
    assert least - 1e-9 <= low <= found.value + 1e-9 and found.value - 1e-9 <= high <= most + 1e-9
    assert found == estimate_mean(values, seed=0, resamples=200, bounds=bounds)
