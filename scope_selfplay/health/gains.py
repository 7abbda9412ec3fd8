"""From Solver to Solver on the held-out tasks: what it gained, and on which kind of criteria."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scope_selfplay.health.bounds import LEAST_TASKS
from scope_selfplay.health.held_out import (
    ASKED,
    AnswerPair,
    interval_of,
    resampled_sums,
)
from scope_selfplay.health.signals import Measured


def score_gain(pairs: Sequence[AnswerPair]) -> Measured | None:
    """The later Solver's score less the earlier one's; behind it the tasks that lost most."""
    values = [(pair.before.score, pair.after.score, pair) for pair in pairs]
    known = [(new - old, pair) for old, new, pair in values if old is not None and new is not None]
    if len(known) < LEAST_TASKS:
        return None
    differences = [difference for difference, _ in known]
    lost = sorted((row for row in known if row[0] < 0), key=lambda row: row[0])
    return Measured(
        float(np.mean(differences)),
        interval_of(resampled_sums([[difference] for difference in differences])[:, 0] / len(known)),
        behind=tuple(pair.after.shown for _, pair in lost),
    )


def kind_gain(pairs: Sequence[AnswerPair]) -> Measured | None:
    """The greatest share of the gain that one dimension of criteria brings that is not asked for.

    On a scale on which 0 is its share of the criteria and 1 is all of the gain; above 1 where the others lose. None
    without a gain that is certain, or where all criteria are of one dimension.
    """
    changes = [_changes(pair) for pair in pairs]
    tasks: dict[str, int] = defaultdict(int)
    for own in changes:
        for name in {change.group for change in own} - {ASKED, ""}:
            tasks[name] += 1
    found = [
        measured
        for name, count in tasks.items()
        if count >= LEAST_TASKS and (measured := _excess(pairs, changes, name)) is not None
    ]
    return max(found, key=lambda measured: measured.value, default=None)


@dataclass(frozen=True)
class _VerdictChange:
    """A criterion's verdict before and after, as +1, 0 or -1."""

    group: str
    gained: int


def _excess(
    pairs: Sequence[AnswerPair], changes: Sequence[Sequence[_VerdictChange]], name: str
) -> Measured | None:
    rows = [
        [
            sum(change.gained for change in own if change.group == name),
            sum(change.gained for change in own),
            sum(change.group == name for change in own),
            len(own),
        ]
        for own in changes
    ]
    gained, gain, criteria, all_criteria = resampled_sums(rows).T
    if interval_of(gain)[0] <= 0 or (criteria == all_criteria).any():
        return None
    part = criteria / all_criteria
    # A resample without a gain is no evidence that one group brings it.
    shares = np.where(gain > 0, gained / np.where(gain > 0, gain, 1), part)
    one, all_of_it, size, all_sizes = np.sum(rows, axis=0)
    return Measured(
        float((one / all_of_it - size / all_sizes) / (1 - size / all_sizes)),
        interval_of((shares - part) / (1 - part)),
        about=name,
        behind=tuple(
            pair.after.shown
            for pair, row in zip(pairs, rows, strict=True)
            # The group gained and nothing else did.
            if row[0] > 0 and row[0] >= row[1]
        ),
    )


def _changes(pair: AnswerPair) -> list[_VerdictChange]:
    verdicts = zip(pair.after.task.dimensions, pair.before.met, pair.after.met, strict=False)
    return [
        _VerdictChange(dimension, int(after) - int(before))
        for dimension, before, after in verdicts
        if before is not None and after is not None
    ]
