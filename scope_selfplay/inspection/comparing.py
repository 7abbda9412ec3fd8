"""`scope tasks diff`: two checkpoints on the same held-out tasks, or the tasks of two iterations side by side."""

from collections.abc import Sequence

import numpy as np

from scope_selfplay.errors import RecordError
from scope_selfplay.health import examine
from scope_selfplay.schemas import Value, numpy_rng_from
from scope_selfplay.store.query import HeldOutScore
from scope_selfplay.store.reader import RunReader


class Change(Value):
    """One held-out task whose score two checkpoints do not share."""

    task_id: str
    text: str
    before: float
    after: float


class CheckpointDiff(Value):
    """`gain` is the mean of after minus before over `tasks`, with a 95 % bootstrap interval over tasks."""

    before: str
    after: str
    tasks: int
    better: int
    worse: int
    gain: float
    low: float
    high: float
    changes: tuple[Change, ...]
    """Most changed first."""


class SignalDiff(Value):
    title: str
    unit: str
    before: float | None
    after: float | None


def diff_checkpoints(reader: RunReader, before: str, after: str) -> CheckpointDiff:
    """Checkpoints by name (S_0, S_1, ...). Raises RecordError for one that has no held-out answers."""
    scores = reader.scores()
    one, two = _scores_of(scores, before), _scores_of(scores, after)
    shared = [task for task in one if task in two]
    if not shared:
        raise RecordError(f"{before} and {after} have no held-out task in common; let both be compared first")
    gains = np.array([two[task] - one[task] for task in shared])
    rows = numpy_rng_from(before, after, "diff").integers(len(gains), size=(2000, len(gains)))
    low, high = np.percentile(gains[rows].mean(axis=1), [2.5, 97.5])
    texts = _texts(reader)
    changes = [
        Change(task_id=task, text=texts.get(task, ""), before=one[task], after=two[task])
        for task in shared
        if one[task] != two[task]
    ]
    return CheckpointDiff(
        before=before,
        after=after,
        tasks=len(shared),
        better=int((gains > 0).sum()),
        worse=int((gains < 0).sum()),
        gain=float(gains.mean()),
        low=float(low),
        high=float(high),
        changes=tuple(sorted(changes, key=lambda each: (-abs(each.after - each.before), each.task_id))),
    )


def diff_iterations(reader: RunReader, before: int, after: int) -> list[SignalDiff]:
    """Every health signal of two iterations. Raises RecordError for one that has made no tasks."""
    checkups = {checkup.iteration: checkup for checkup in examine(reader)}
    for number in (before, after):
        if number not in checkups:
            known = ", ".join(map(str, checkups)) or "none"
            raise RecordError(f"iteration {number} has made no tasks; those that have: {known}")
    pairs = zip(checkups[before].signals, checkups[after].signals, strict=True)
    return [
        SignalDiff(title=one.title, unit=one.unit, before=one.value, after=two.value)
        for one, two in pairs
        if one.value is not None or two.value is not None
    ]


def _scores_of(scores: Sequence[HeldOutScore], name: str) -> dict[str, float]:
    found = {
        each.task_id: each.score
        for each in scores
        if each.score is not None and (each.checkpoint == name or each.checkpoint.startswith(f"{name}-"))
    }
    if not found:
        known = ", ".join(dict.fromkeys(each.checkpoint for each in scores)) or "none"
        raise RecordError(f"{name}: has no held-out answers; checkpoints that have: {known}")
    return found


def _texts(reader: RunReader) -> dict[str, str]:
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates "
        "WHERE iteration = 0 AND stage = 'tasks' AND task IS NOT NULL"
    )
    return {row["id"]: row["text"] for row in rows}
