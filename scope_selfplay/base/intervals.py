"""Means over items with 95 % intervals that hold what they promise, also for few items. Pure.

Items are what counts: all answers and verdicts on one item are its own, so whoever calls this has made one value of
each item. Scores and differences of scores have score intervals, which know that a mean of few right items is lopsided:
Wilson's for scores (1927), Tango's for paired differences (1998), both with the number of items that right or wrong
answers would need to vary as much (as for proportions in surveys: Kish, 1965; Dean and Pagano, 2015). Values that are
all the same have the exact bound of Clopper and Pearson. Values without bounds have the bootstrap's percentiles,
widened for small numbers as Hesterberg does ("What teachers should know about the bootstrap", 2015): by the quantile of
Student's t, and by sqrt(n / (n - 1)). tests/unit/evaluation/test_intervals.py holds all of it against simulations.
"""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scope_selfplay.base.values import Value, numpy_rng_from

FEW_ITEMS = 20
"""Below so many, an estimate says how few there are."""


def _note(known: dict[str, Any]) -> str:
    items = known.get("items", 0)
    return "one item: no interval" if items == 1 else f"only {items} items" if items < FEW_ITEMS else ""


class Estimate(Value):
    """A mean over items, or what was fitted to them, with its 95 % interval; one item has none."""

    value: float
    low: float | None
    high: float | None
    items: int
    note: str = Field(default_factory=_note)
    """What to beware of; empty where nothing is."""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval's, or the value twice where there is none."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high


def shown(estimate: Estimate | None, *, digits: int = 3, sign: bool = False) -> str:
    """`0.412 [0.371, 0.455]`; what has no interval stands alone, and what is not known is a dash."""
    if estimate is None:
        return "-"
    form = f"{'+' if sign else ''}.{digits}f"
    value = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:{form}}, {estimate.high:{form}}]"


def wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """`z` is the normal quantile of the interval's confidence: 1.96 for 95 %."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


Floats = NDArray[np.float64]

SHARES, DIFFERENCES = (0.0, 1.0), (-1.0, 1.0)
"""What values may be, where that is known: scores, and differences of scores."""
MANY_ITEMS = 2000
"""Beyond so many the mean is as good as normal, and resampling would take long to say the same."""
RESAMPLES = 2000
"""Bootstrap resamples of an interval."""
_AT_ONCE = 1 << 21
# Floating-point noise between values that are equal.
_EQUAL = 1e-12
_TINY = 1e-15
_TAIL = 0.025
"""The probability on each side of an interval."""


def estimate_mean(
    values: Sequence[float],
    *,
    seed: int,
    resamples: int = RESAMPLES,
    bounds: tuple[float, float] | None = SHARES,
    looks: int = 1,
) -> Estimate | None:
    """The mean of one value per item, its interval never beyond `bounds`; None without any.

    With `looks` as many intervals hold all at once (Bonferroni).
    """
    count = len(values)
    if not count:
        return None
    data = np.asarray(values, dtype=np.float64)
    low, high = _mean_interval(data, seed, resamples, bounds, looks) if count > 1 else (None, None)
    return Estimate(value=float(np.mean(values)), low=low, high=high, items=count)


def estimate_order(above: Sequence[Sequence[float]]) -> Estimate:
    """How often one of the rows is above one of the columns, each pair 0, 0.5 or 1; `items` are those of the fewer.

    Both sides are drawn (DeLong, DeLong and Clarke-Pearson, 1988).
    """
    table = np.asarray(above, dtype=np.float64)
    share, few = float(table.mean()), min(table.shape)
    variance = (
        sum(float(table.mean(axis).var(ddof=1)) / table.shape[1 - axis] for axis in (0, 1)) if few > 1 else 0
    )
    if variance < _TINY:
        return Estimate.model_validate(estimate_mean([share] * few, seed=0))
    low, high = wilson(share, min(share * (1 - share) / variance, sum(table.shape)), _t_quantile(few, 1))
    return Estimate(value=share, low=low, high=high, items=few)


def mean_by_item(values: Iterable[tuple[str, float]]) -> list[float]:
    """One value per item: the mean of its own, in the order in which the items come."""
    found: dict[str, list[float]] = {}
    for item, value in values:
        found.setdefault(item, []).append(float(value))
    return [sum(own) / len(own) for own in found.values()]


Estimator = Callable[..., Estimate | None]
"""`estimate_mean` with the seed and resamples of a result."""


class Fitted(NamedTuple):
    """What was fitted to all items, and to each of so many draws of as many items with replacement."""

    whole: Floats
    drawn: Floats

    def estimate(self, of: Callable[[Floats], Floats], items: int, *, looks: int = 1) -> Estimate:
        """Of one number of every fit; draws in which it is not defined are left out. `items` told of it."""
        low, high = None, None
        if items > 1:
            low, high = map(float, np.nanpercentile(of(self.drawn), percentiles(items, looks)))
        return Estimate(value=float(of(self.whole[None])[0]), low=low, high=high, items=items)


def fit_over_items(
    tables: Floats, fit: Callable[[Floats], Floats], *, seed: str | int, resamples: int = RESAMPLES
) -> Fitted:
    """`tables` (items, ...) hold what each item tells; `fit` makes (draws, ...) of sums of them.

    All that belongs to one item is drawn together, since it is not independent. In parts, so that many items need
    little memory.
    """
    items, flat = len(tables), tables.reshape(len(tables), int(np.prod(tables.shape[1:])))
    whole = fit(tables.sum(axis=0, keepdims=True))[0]
    if not items:
        return Fitted(whole, np.zeros((0, *whole.shape)))
    rng, step = numpy_rng_from(seed, "bootstrap"), max(1, 2 * _AT_ONCE // max(flat.shape))
    parts = []
    for done in range(0, resamples, step):
        count = min(step, resamples - done)
        # How often each draw holds each item, by counting: many times faster than a multinomial of many items.
        drawn = rng.integers(items, size=(count, items)) + items * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * items).reshape(count, items).astype(float)
        parts.append(fit((weights @ flat).reshape(-1, *tables.shape[1:])))
    return Fitted(whole, np.concatenate(parts))


def _mean_interval(
    data: Floats, seed: int, resamples: int, bounds: tuple[float, float] | None, looks: int
) -> tuple[float, float]:
    if np.ptp(data) <= _EQUAL and not (bounds and _is_right_or_wrong(data)):
        return _all_equal(data, bounds, looks)
    if bounds == SHARES:
        share = float(data.mean())
        return wilson(share, *_effective(data, share * (1 - share), looks))
    if bounds == DIFFERENCES:
        return _tango(data, looks)
    if len(data) > MANY_ITEMS:
        half = _t_quantile(len(data), looks) * float(data.std(ddof=1)) / sqrt(len(data))
        return float(data.mean()) - half, float(data.mean()) + half
    means = fit_over_items(data, lambda sums: sums / len(data), seed=seed, resamples=resamples).drawn
    low, high = np.percentile(means, percentiles(len(data), looks))
    return float(low), float(high)


def percentiles(items: int, looks: int = 1) -> tuple[float, float]:
    """Which percentiles of a bootstrap over so many items bound a 95 % interval."""
    above = NormalDist().cdf(sqrt(items / (items - 1)) * _t_quantile(items, looks))
    return 100 * (1 - above), 100 * above


def _t_quantile(items: int, looks: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(items - 1, 1 - _TAIL / looks))


def _tango(data: Floats, looks: int) -> tuple[float, float]:
    """All differences that lie fewer than z standard errors away, each with the error that it would have itself."""
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

    return _falls_to(errors, z, -1.0, found), _falls_to(errors, -z, found, 1.0)


def _falls_to(falling: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where it has this value, by halves: scipy's own search brings 35 MB, which a page has to hold."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return middle


def _effective(data: Floats, right_or_wrong: float, looks: int) -> tuple[float, float]:
    """How many items vary as much where each is right or wrong, with that variance, and the quantile that goes with
    it: the normal one where they are, Student's where the variance had to be estimated.
    """
    if _is_right_or_wrong(data):
        return float(len(data)), NormalDist().inv_cdf(1 - _TAIL / looks)
    return len(data) * right_or_wrong / float(data.var(ddof=1)), _t_quantile(len(data), looks)


def _is_right_or_wrong(data: Floats) -> bool:
    """Whether these are marks of 0 and 1, or their differences."""
    return set(np.unique(data)) <= {-1.0, 0.0, 1.0}


def _all_equal(data: Floats, bounds: tuple[float, float] | None, looks: int) -> tuple[float, float]:
    """How far the mean may lie from the one value seen, if any other were too rare to be among so many items."""
    value = float(data[0])
    if bounds is None:
        return value, value
    rare = 1 - (_TAIL / looks) ** (1 / len(data))
    return value - (value - bounds[0]) * rare, value + (bounds[1] - value) * rare
