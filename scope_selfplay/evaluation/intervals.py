"""Means over items with 95 % intervals that hold what they promise, also for few items. Pure.

Items are what counts: all answers and verdicts on one item are its own, so whoever calls this has made one value of
each item. Scores and differences of scores have score intervals, which know that a mean of few right items is lopsided:
Wilson's for scores (1927), Tango's for paired differences (1998), both with the number of items that right or wrong
answers would need to vary as much (as for proportions in surveys: Kish, 1965; Dean and Pagano, 2015). Values that are
all the same have the exact bound of Clopper and Pearson. Values without bounds have the bootstrap's percentiles,
widened for small numbers as Hesterberg does ("What teachers should know about the bootstrap", 2015): by the quantile of
Student's t, and by sqrt(n / (n - 1)). tests/unit/evaluation/test_intervals.py holds all of it against simulations.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.schemas import Value
from scope_selfplay.score_interval import wilson

Floats = NDArray[np.float64]

SHARES, DIFFERENCES = (0.0, 1.0), (-1.0, 1.0)
"""What values may be, where that is known: scores, and differences of scores."""
FEW_ITEMS = 20
"""Below so many, an estimate says how few there are."""
MANY_ITEMS = 2000
"""Beyond so many the mean is as good as normal, and resampling would take long to say the same."""
_AT_ONCE = 1 << 21
# Floating-point noise between values that are equal.
_EQUAL = 1e-12
_TINY = 1e-15


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(Value):
    """A mean over items with its 95 % interval; one item has none."""

    value: float
    low: float | None
    high: float | None
    items: int
    note: str = ""
    """What to beware of; empty where nothing is."""


def estimate_mean(
    values: Sequence[float],
    *,
    seed: int,
    resamples: int = 2000,
    bounds: tuple[float, float] | None = SHARES,
) -> Estimate | None:
    """The mean of one value per item; None without any."""
    if not len(values):
        return None
    found = mean_interval(values, seed=seed, resamples=resamples, bounds=bounds)
    low, high = found if found is not None else (None, None)
    return Estimate(
        value=float(np.mean(values)), low=low, high=high, items=len(values), note=note_on(len(values))
    )


def note_on(items: int) -> str:
    """What a reader must know of a number of items."""
    if items == 1:
        return "one item: no interval"
    return f"only {items} items" if items < FEW_ITEMS else ""


def mean_interval(
    values: Sequence[float],
    *,
    seed: int,
    resamples: int = 2000,
    bounds: tuple[float, float] | None = SHARES,
    looks: int = 1,
) -> Interval | None:
    """The interval of the mean, never beyond `bounds`; None for fewer than two items.

    With `looks` as many intervals hold all at once (Bonferroni).
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2:
        return None
    if np.ptp(data) <= _EQUAL and not (bounds and _is_right_or_wrong(data)):
        return _all_equal(data, bounds, looks)
    if bounds == SHARES:
        return _wilson(data, looks)
    if bounds == DIFFERENCES:
        return _tango(data, looks)
    if len(data) > MANY_ITEMS:
        half = _t_quantile(len(data), looks) * float(data.std(ddof=1)) / sqrt(len(data))
        return Interval(float(data.mean()) - half, float(data.mean()) + half)
    low, high = np.percentile(_resampled_means(data, seed, resamples), percentiles(len(data), looks))
    return Interval(float(low), float(high))


def percentiles(items: int, looks: int = 1) -> tuple[float, float]:
    """Which percentiles of a bootstrap over so many items bound a 95 % interval."""
    above = NormalDist().cdf(sqrt(items / (items - 1)) * _t_quantile(items, looks))
    return 100 * (1 - above), 100 * above


def _t_quantile(items: int, looks: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(items - 1, 1 - _tail(looks)))


def _tail(looks: int) -> float:
    """The probability on each side of the interval."""
    return 0.025 / looks


def _resampled_means(data: Floats, seed: int, resamples: int) -> Floats:
    """As many means of resampled items; in parts, so that ten thousand items need little memory."""
    rng, count = numpy_rng_from(seed, "bootstrap"), len(data)
    step = max(1, _AT_ONCE // count)
    parts = [
        data[rng.integers(count, size=(min(step, resamples - done), count))].mean(axis=1)
        for done in range(0, resamples, step)
    ]
    return np.concatenate(parts)


def _wilson(data: Floats, looks: int) -> Interval:
    share = float(data.mean())
    return Interval(*wilson(share, *_effective(data, share * (1 - share), looks)))


def _tango(data: Floats, looks: int) -> Interval:
    """All differences that lie fewer than z standard errors away, each with the error that it would have itself."""
    from scipy.optimize import brentq

    gained, lost = float(np.maximum(data, 0).mean()), float(np.maximum(-data, 0).mean())
    found = gained - lost
    count, z = _effective(data, gained + lost - found * found, looks)

    def errors(difference: float) -> float:
        """By how many the one found lies above `difference`; the share lost is the likeliest one under it."""
        pull = (2 - found) * difference - gained - lost
        rest = lost * difference * (1 - difference)
        lost_then = (sqrt(max(0.0, pull * pull + 8 * rest)) - pull) / 4
        variance = (2 * lost_then + difference * (1 - difference)) / count
        return (found - difference) / sqrt(max(variance, _TINY))

    low = brentq(lambda each: errors(each) - z, -1.0, found) if found > -1 else -1.0
    high = brentq(lambda each: errors(each) + z, found, 1.0) if found < 1 else 1.0
    return Interval(float(low), float(high))


def _effective(data: Floats, right_or_wrong: float, looks: int) -> tuple[float, float]:
    """How many items vary as much where each is right or wrong, with that variance, and the quantile that goes with
    it: the normal one where they are, Student's where the variance had to be estimated.
    """
    if _is_right_or_wrong(data):
        return float(len(data)), _normal_quantile(looks)
    return len(data) * right_or_wrong / float(data.var(ddof=1)), _t_quantile(len(data), looks)


def _is_right_or_wrong(data: Floats) -> bool:
    """Whether these are marks of 0 and 1, or their differences."""
    return set(np.unique(data)) <= {-1.0, 0.0, 1.0}


def _normal_quantile(looks: int) -> float:
    return NormalDist().inv_cdf(1 - _tail(looks))


def _all_equal(data: Floats, bounds: tuple[float, float] | None, looks: int) -> Interval:
    """How far the mean may lie from the one value seen, if any other were too rare to be among so many items."""
    value = float(data[0])
    if bounds is None:
        return Interval(value, value)
    rare = 1 - _tail(looks) ** (1 / len(data))
    return Interval(value - (value - bounds[0]) * rare, value + (bounds[1] - value) * rare)
