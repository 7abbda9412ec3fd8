"""How far several judges agree on the same answers, or on the same pairs of answers. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from scope_selfplay.evaluation.kappa import Kappa, Labels, kappa_over_tasks
from scope_selfplay.schemas import Value

ALL_JUDGES = "all judges"
"""The mean of several judges on each answer, or pair of answers, where there are several."""
CLOSE = 0.1
"""Values that lie no further apart count as the same."""
_LABELS = frozenset({0.0, 0.5, 1.0})


class Mark(NamedTuple):
    """What a judge gave to an answer, or to the first of a pair: `shown` names it."""

    scorer: str
    judge: str
    item_id: str
    shown: str
    value: float


class Agreement(Value):
    """Two judges on the answers, or pairs of answers, that both gave a value."""

    scorer: str
    one: str
    other: str
    answers: int
    """How many, or how many pairs."""
    same: float
    """The share of them whose values lie within a tenth."""
    kappa: float | None
    """Cohen's: agreement beyond chance, where values are 0, 1/2 or 1 and chance alone would not agree always."""
    kappa_low: float | None
    kappa_high: float | None
    correlation: float | None
    """Pearson's, where both judges' values vary."""
    mean_gap: float
    """How much higher the first judge's values lie in the mean."""


def agreements(marks: Iterable[Mark]) -> list[Agreement]:
    """Every two judges of every scorer, in the order of their names."""
    values: dict[tuple[str, str], dict[str, Mark]] = defaultdict(dict)
    for mark in marks:
        values[mark.scorer, mark.judge][mark.shown] = mark
    found = []
    for one, other in combinations(sorted(values), 2):
        shared = sorted(values[one].keys() & values[other].keys())
        if one[0] == other[0] and shared:
            found.append(_agreement([(values[one][each], values[other][each]) for each in shared]))
    return found


def _agreement(pairs: Sequence[tuple[Mark, Mark]]) -> Agreement:
    values = np.array([(one.value, other.value) for one, other in pairs])
    first, second = values.T
    kappa = Kappa(None, None, None)
    if set(np.unique(values)) <= _LABELS:
        kappa = kappa_over_tasks([Labels(one.item_id, one.value, other.value) for one, other in pairs])
    varies = bool(np.ptp(first) and np.ptp(second))
    return Agreement(
        scorer=pairs[0][0].scorer,
        one=pairs[0][0].judge,
        other=pairs[0][1].judge,
        answers=len(pairs),
        same=float((abs(first - second) <= CLOSE + 1e-9).mean()),
        kappa=kappa.value,
        kappa_low=kappa.low,
        kappa_high=kappa.high,
        correlation=float(np.corrcoef(first, second)[0, 1]) if varies else None,
        mean_gap=float((first - second).mean()),
    )
