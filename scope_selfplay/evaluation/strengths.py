"""Ratings from comparisons on held-out tasks, with intervals over tasks. Pure.

The model of one judged presentation: margin = strength of the first - strength of the second + offset + noise,
with one offset for the place in the prompt (`ranking.fit_margins` fits the same). All presentations of one task are
resampled together: they share the task, so they are not independent observations.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.evaluation.intervals import percentiles
from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.schemas import Outcome
from scope_selfplay.store.ratings import CheckpointDifference

Floats = NDArray[np.float64]

# It decides only what no comparison determines; everything else outweighs it by far.
_RIDGE = 1e-6


class JudgedPair(NamedTuple):
    """One outcome: on which task, which checkpoints in the order shown; `asked` is false for a tie of equal answers."""

    task: str
    first: str
    second: str
    outcome: Outcome
    asked: bool = True


class Strengths:
    """The fit over all tasks, and over `resamples` draws of as many tasks with replacement.

    Every name has a column of the fit, `offset` the last one. Checkpoints that nothing connects have no difference.
    """

    def __init__(self, judged: Sequence[JudgedPair], *, seed: int, resamples: int) -> None:
        self.names = sorted({name for each in judged for name in (each.first, each.second)})
        self._judged = judged
        grams, pulls = self._moments()
        weights = _draws(len(grams), seed, resamples)
        self._point = _solve(np.ones((1, len(grams))), grams, pulls)[0]
        self._sampled = _solve(weights, grams, pulls)

    @property
    def offset(self) -> float:
        """What being shown first is worth, in units of the margin."""
        return float(self._point[-1])

    def difference(self, new: str, old: str, *, looks: int = 1) -> CheckpointDifference | None:
        """Strength of `new` less that of `old`; None where no chain of comparisons leads from one to the other.

        With `looks` the interval is so wide that as many of them hold all at once.
        """
        if not self._connected(new, old):
            return None
        row, column = self.names.index(new), self.names.index(old)
        drawn = self._sampled[:, row] - self._sampled[:, column]
        tasks = {each.task for each in self._judged if new in (each.first, each.second)}
        value, low, high = float(self._point[row] - self._point[column]), None, None
        if len(tasks) > 1:
            low, high = map(float, np.percentile(drawn, percentiles(len(tasks), looks)))
        return CheckpointDifference(value=value, low=low, high=high, tasks=len(tasks))

    def _moments(self) -> tuple[Floats, Floats]:
        """Per task the normal equations of its presentations: (tasks, n+1, n+1) and (tasks, n+1)."""
        tasks = {task: row for row, task in enumerate(dict.fromkeys(each.task for each in self._judged))}
        width = len(self.names) + 1
        grams, pulls = np.zeros((len(tasks), width, width)), np.zeros((len(tasks), width))
        for pair in self._judged:
            row = np.zeros(width)
            row[self.names.index(pair.first)], row[self.names.index(pair.second)] = 1.0, -1.0
            # A tie of equal answers was never shown: it holds nothing about the order.
            row[-1] = float(pair.asked)
            grams[tasks[pair.task]] += np.outer(row, row)
            pulls[tasks[pair.task]] += row * (pair.outcome.first - pair.outcome.second)
        return grams, pulls

    def _connected(self, one: str, other: str) -> bool:
        reached, fresh = {one}, [one]
        while fresh:
            here = fresh.pop()
            near = {name for each in self._judged if here in each[1:3] for name in each[1:3]} - reached
            reached |= near
            fresh += near
        return other in reached and other in self.names


def _draws(tasks: int, seed: int, resamples: int) -> Floats:
    """How often each resample holds each task: (resamples, tasks)."""
    if tasks == 0:
        return np.zeros((resamples, 0))
    even = np.full(tasks, 1.0 / tasks)
    return numpy_rng_from(seed, "bootstrap").multinomial(tasks, even, size=resamples).astype(np.float64)


def _solve(weights: Floats, grams: Floats, pulls: Floats) -> Floats:
    """(draws, tasks) weights on the tasks' equations -> (draws, n+1) solutions."""
    normal = np.einsum("dt,tij->dij", weights, grams) + _RIDGE * np.eye(grams.shape[-1])
    solution = np.linalg.solve(normal, (weights @ pulls)[..., None])
    return np.asarray(solution[..., 0], dtype=np.float64)
