"""Two checkpoints on the same held-out tasks, or the tasks of two iterations side by side."""

from collections.abc import Sequence

import numpy as np

from scope_selfplay.errors import RecordError
from scope_selfplay.health.checkup import examine
from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.schemas import Value
from scope_selfplay.store.query import HeldOutScore
from scope_selfplay.store.reader import RunReader


class TaskChange(Value):
    """A held-out task and what two checkpoints scored on it; None where a score is missing."""

    task_id: str
    text: str
    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


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
    changes: tuple[TaskChange, ...]
    """Tasks with two different scores, the most changed first."""


class SignalDiff(Value):
    title: str
    unit: str
    before: float | None
    after: float | None


def short_name(checkpoint: str) -> str:
    """`S_1` of `S_1-0badcafe`: what a person calls a checkpoint."""
    return checkpoint.partition("-")[0]


def task_changes(
    reader: RunReader, scores: Sequence[HeldOutScore], before: str, after: str
) -> list[TaskChange]:
    """The held-out tasks that both checkpoints answered, of the scores of all (`RunReader.scores`).

    Checkpoints by name (S_0, S_1, ...). Raises RecordError for one that has no held-out answers.
    """
    one, two = _scores_of(scores, before), _scores_of(scores, after)
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates "
        "WHERE iteration = 0 AND stage = 'tasks' AND task IS NOT NULL"
    )
    texts = {row["id"]: row["text"] for row in rows}
    return [
        TaskChange(task_id=task, text=texts.get(task, ""), before=score, after=two[task])
        for task, score in one.items()
        if task in two
    ]


def diff_checkpoints(before: str, after: str, changes: Sequence[TaskChange]) -> CheckpointDiff:
    """What the changes from one checkpoint to another come to. Raises RecordError where no task has two scores."""
    scored = [(change, change.gain) for change in changes if change.gain is not None]
    if not scored:
        raise RecordError(f"{before} and {after} have no held-out task in common; let both be compared first")
    gains = np.array([gain for _, gain in scored])
    rows = numpy_rng_from(before, after, "diff").integers(len(gains), size=(2000, len(gains)))
    low, high = np.percentile(gains[rows].mean(axis=1), [2.5, 97.5])
    changed = [change for change, gain in scored if gain]
    changed.sort(key=lambda change: (-abs(change.gain or 0.0), change.task_id))
    return CheckpointDiff(
        before=before,
        after=after,
        tasks=len(scored),
        better=int((gains > 0).sum()),
        worse=int((gains < 0).sum()),
        gain=float(gains.mean()),
        low=float(low),
        high=float(high),
        changes=tuple(changed),
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


def _scores_of(scores: Sequence[HeldOutScore], name: str) -> dict[str, float | None]:
    own = [score for score in scores if name in (score.checkpoint, short_name(score.checkpoint))]
    found = {score.task_id: score.score for score in own}
    if all(score is None for score in found.values()):
        known = ", ".join(dict.fromkeys(score.checkpoint for score in scores)) or "none"
        raise RecordError(f"{name}: has no held-out answers; checkpoints that have: {known}")
    return found
