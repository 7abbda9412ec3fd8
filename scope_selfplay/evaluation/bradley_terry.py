"""Strengths of checkpoints by Bradley and Terry, a tie half a win, with intervals over items. Pure.

Beside the least squares of `strengths`, which reads how far the scores lie apart, this counts who was better. The fit
is that of the rewards by comparison (`ranking.shares`), with a weak prior that keeps an undefeated checkpoint finite.
All comparisons on one item are resampled together.
"""

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.evaluation.intervals import Estimate, Floats, note_on, percentiles
from scope_selfplay.evaluation.strengths import JudgedPair
from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.ranking.shares import bradley_terry_batch

ELO = 400 / log(10)
"""Points by which ten times the odds are 400."""
_RIDGE = 0.01
_AT_ONCE = 1 << 22


def elo_ratings(
    judged: Sequence[JudgedPair], names: Sequence[str], *, seed: int, resamples: int
) -> dict[str, Estimate]:
    """Points above the first name, with intervals; a name that no chain of comparisons leads to has none."""
    won = _won(judged, names)
    met = won.sum(axis=0)
    if not met.any():
        return {}
    point, drawn = bradley_terry_batch(met[None], ridge=_RIDGE), _resampled(won, seed, resamples)
    return {
        names[place]: _estimate(place, ELO * point, ELO * drawn, _items_of(won, place))
        for place in map(int, np.flatnonzero(_connected(met > 0)))
    }


def _estimate(place: int, point: Floats, drawn: Floats, items: int) -> Estimate:
    low, high = None, None
    if place and items > 1:
        bounds = np.percentile(drawn[:, place] - drawn[:, 0], percentiles(items))
        low, high = float(bounds[0]), float(bounds[1])
    value = float(point[0, place] - point[0, 0])
    return Estimate(value=value, low=low, high=high, items=items, note=note_on(items))


def _items_of(won: Floats, place: int) -> int:
    """On how many items a checkpoint was compared."""
    return int(((won[:, place].sum(axis=1) + won[:, :, place].sum(axis=1)) > 0).sum())


def _won(judged: Sequence[JudgedPair], names: Sequence[str]) -> Floats:
    """(items, n, n): the sum of the shares that each took from each on an item; a tie is half for both."""
    items = {item: row for row, item in enumerate(dict.fromkeys(pair.task for pair in judged))}
    places = {name: place for place, name in enumerate(names)}
    won = np.zeros((len(items), len(names), len(names)))
    for pair in judged:
        if pair.first not in places or pair.second not in places:
            continue
        row, first, second = items[pair.task], places[pair.first], places[pair.second]
        margin = pair.outcome.first - pair.outcome.second
        share = 0.5 if margin == 0 else float(margin > 0)
        won[row, first, second] += share
        won[row, second, first] += 1 - share
    return won


def _resampled(won: Floats, seed: int, resamples: int) -> Floats:
    """Strengths (resamples, n) of as many draws of the items."""
    items, count, _ = won.shape
    rng, even = numpy_rng_from(seed, "bootstrap"), np.full(items, 1.0 / items)
    step = max(1, _AT_ONCE // max(items, count * count))
    flat, parts = won.reshape(items, -1), []
    for done in range(0, resamples, step):
        weights = rng.multinomial(items, even, size=min(step, resamples - done)).astype(np.float64)
        parts.append(bradley_terry_batch((weights @ flat).reshape(-1, count, count), ridge=_RIDGE))
    return np.concatenate(parts)


def _connected(met: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which checkpoints a chain of comparisons leads to from the first."""
    near: NDArray[np.bool_] = met | met.T | np.eye(len(met), dtype=bool)
    reached: NDArray[np.bool_] = near[0]
    for _ in range(len(met)):
        reached = np.matmul(near, reached)
    return reached
