"""How far two raters agree beyond chance: Cohen's kappa with a bootstrap interval over tasks. Pure.

Kappa (Cohen 1960) is (p_o - p_e) / (1 - p_e): p_o is the share of equal labels, p_e the share that raters with the same
marginals would reach by chance. Several labels of one task are not independent, so tasks are drawn, not labels.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.keys import numpy_rng_from

RESAMPLES = 2000


class Labels(NamedTuple):
    """What two raters said to one question; `task` is what it belongs to."""

    task: str
    judge: Hashable
    person: Hashable


class Kappa(NamedTuple):
    """`value` is None where chance alone would agree always; the interval is None over fewer than two tasks."""

    value: float | None
    low: float | None
    high: float | None


def kappa_over_tasks(labels: Sequence[Labels], *, resamples: int = RESAMPLES) -> Kappa:
    """With a 95 % interval over tasks; resamples in which kappa is not defined are left out of it."""
    counts = _counts(labels)
    value = _kappas(counts.sum(axis=0, keepdims=True))[0] if labels else np.nan
    if np.isnan(value):
        return Kappa(None, None, None)
    if len(counts) < 2:
        return Kappa(float(value), None, None)
    draws = numpy_rng_from("kappa", len(counts)).multinomial(
        len(counts), [1 / len(counts)] * len(counts), size=resamples
    )
    found = _kappas(np.tensordot(draws, counts, axes=1))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return Kappa(float(value), float(low), float(high))


def _counts(labels: Sequence[Labels]) -> NDArray[Any]:
    """By task: how often the judge said one thing and the person another, as a square table."""
    kinds = {label: row for row, label in enumerate({label for each in labels for label in each[1:]})}
    tasks = {task: row for row, task in enumerate(dict.fromkeys(each.task for each in labels))}
    counts = np.zeros((len(tasks), len(kinds), len(kinds)))
    for each in labels:
        counts[tasks[each.task], kinds[each.judge], kinds[each.person]] += 1
    return counts


def _kappas(tables: NDArray[Any]) -> NDArray[Any]:
    """Of each table; not a number where both raters gave one and the same label to everything."""
    total = tables.sum(axis=(1, 2))
    agreed = np.trace(tables, axis1=1, axis2=2) / total
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / total**2
    room = 1 - by_chance
    return np.where(room > 1e-12, (agreed - by_chance) / np.where(room > 1e-12, room, 1.0), np.nan)
