"""Whether an iteration's tasks stay different: the pattern that most of them follow."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from scope_selfplay.health.bounds import LEAST_TASKS
from scope_selfplay.health.signals import Measured, evidence
from scope_selfplay.health.wording import patterns_of
from scope_selfplay.store.reader import RunReader

SAMPLE = 5_000
"""Accepted tasks of an iteration whose texts are looked at."""
PATTERNS_SAMPLE = 1_000
"""Those of them whose patterns are taken."""


class MadeTask(NamedTuple):
    """An accepted task."""

    iteration: int
    id: str
    text: str


def made_tasks(reader: RunReader, iteration: int) -> list[MadeTask]:
    """The first `SAMPLE` accepted tasks of an iteration, in the order in which they were made."""
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL ORDER BY ordinal LIMIT ?",
        [iteration, SAMPLE],
    )
    return [MadeTask(iteration, row["id"], row["text"]) for row in rows]


def common_pattern(tasks: Sequence[MadeTask]) -> Measured | None:
    """The share of tasks that follow the commonest pattern; None for too few tasks."""
    tasks = tasks[:PATTERNS_SAMPLE]
    if len(tasks) < LEAST_TASKS:
        return None
    patterns = [pattern for (pattern,) in patterns_of([[task.text] for task in tasks])]
    counts = Counter(pattern for pattern in patterns if pattern)
    if not counts:
        return Measured(0.0)
    found, count = counts.most_common(1)[0]
    behind = tuple(evidence(*task) for task, own in zip(tasks, patterns, strict=True) if own == found)
    return Measured(count / len(tasks), about=found, behind=behind)
