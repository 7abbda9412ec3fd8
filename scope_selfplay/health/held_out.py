"""The held-out tasks with their criteria, what every Solver answered to them, and means over tasks with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.health.bounds import LEAST_TASKS
from scope_selfplay.health.signals import Evidence, evidence
from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.store.ratings import has_ratings, read_ratings
from scope_selfplay.store.reader import RunReader

HELD_OUT_SAMPLE = 2_000
"""Held-out tasks whose answers are looked at."""
RESAMPLES = 2_000
ASKED = "asked"
"""The dimension of criteria that the task itself names."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOutTask:
    id: str
    text: str
    dimensions: tuple[str, ...]
    """Of its criteria, one each."""

    def evidence(self, shown: str) -> Evidence:
        return evidence(0, self.id, self.text, shown)


@dataclass(frozen=True)
class HeldOutAnswer:
    """What one Solver answered to a task. `met` has a verdict per criterion; None where it is missing."""

    task: HeldOutTask
    text: str
    score: float | None
    met: tuple[bool | None, ...]

    @property
    def shown(self) -> Evidence:
        return self.task.evidence(self.text or "(no answer)")


Answers = Mapping[str, HeldOutAnswer]
"""One Solver's answers by the task's id."""


@dataclass(frozen=True)
class AnswerPair:
    """Two Solvers' answers to one task."""

    before: HeldOutAnswer
    after: HeldOutAnswer


def held_out_tasks(reader: RunReader) -> dict[str, HeldOutTask]:
    """The first `HELD_OUT_SAMPLE` of them by id, in the order in which they were made."""
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text, rubric.criteria AS criteria FROM candidates "
        "WHERE iteration = 0 AND stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL ORDER BY ordinal LIMIT ?",
        [HELD_OUT_SAMPLE],
    )
    return {
        row["id"]: HeldOutTask(
            row["id"],
            row["text"],
            tuple(each["dimension"] for each in row["criteria"] or ()),
        )
        for row in rows
    }


def held_out_answers(reader: RunReader, tasks: Mapping[str, HeldOutTask], iteration: int) -> Answers:
    """Those of S_t, as far as they are graded."""
    rows = reader.sql(
        "SELECT r.subject_id AS task, r.answer, g.score, list_transform(g.verdicts, lambda v: v.value) AS met "
        "FROM rollouts r JOIN grades g ON g.rollout_id = r.id AND g.iteration = $1 AND g.stage = 'compare' "
        "WHERE r.iteration = $1 AND r.stage = 'compare' AND r.subject_id IN (SELECT unnest($2::VARCHAR[])) "
        "ORDER BY r.ordinal",
        [iteration, list(tasks)],
    )
    return {
        row["task"]: HeldOutAnswer(tasks[row["task"]], row["answer"] or "", row["score"], tuple(row["met"]))
        for row in rows
    }


def trained_from(reader: RunReader, iteration: int) -> int:
    """The number of the Solver from which S_t was trained: the one before, unless that was not promoted."""
    starts = read_ratings(reader.folder, iteration).starts if has_ratings(reader.folder, iteration) else ()
    number = starts[-1].partition("-")[0].removeprefix("S_") if starts else ""
    return int(number) if number.isdecimal() else iteration - 1


def pair_answers(before: Answers, after: Answers) -> list[AnswerPair]:
    """By task; [] where there are too few to say anything."""
    pairs = [AnswerPair(before[task], answer) for task, answer in after.items() if task in before]
    return pairs if len(pairs) >= LEAST_TASKS else []


def resampled_sums(rows: Sequence[Sequence[float]]) -> Numbers:
    """Sums of the columns under resampling of the rows, which are tasks: `RESAMPLES` by columns."""
    data = np.asarray(rows, dtype=np.float64)
    size = len(data)
    return numpy_rng_from(0, "health").multinomial(size, np.full(size, 1 / size), size=RESAMPLES) @ data


def interval_of(resampled: Numbers) -> tuple[float, float]:
    """The middle 99 %: a run asks dozens of such questions, and chance must not answer them."""
    low, high = np.percentile(resampled, [0.5, 99.5])
    return float(low), float(high)
