"""How answers are written: sentences that they say twice, their length, and length against score."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scope_selfplay.health.bounds import LEAST_TASKS
from scope_selfplay.health.held_out import Answers, Numbers, interval_of, resampled_sums
from scope_selfplay.health.signals import Measured, evidence
from scope_selfplay.health.wording import repeated_sentence, word_count
from scope_selfplay.store.reader import RunReader

ATTEMPTS_SAMPLE = 200
"""Tried tasks of an iteration whose answers are looked at."""


def mean_words(answers: Answers) -> float | None:
    """Words in an answer, where there is one."""
    counts = [word_count(answer.text) for answer in answers.values() if answer.text]
    return sum(counts) / len(counts) if counts else None


def repeated_sentences(answers: Answers) -> Measured | None:
    """The share of answers that say a sentence twice."""
    if len(answers) < LEAST_TASKS:
        return None
    rows = [answer for answer in answers.values() if repeated_sentence(answer.text)]
    return Measured(len(rows) / len(answers), behind=tuple(answer.shown for answer in rows))


def length_correlation(reader: RunReader, iteration: int) -> Measured | None:
    """Of words and score among the answers to one task, over the first tried tasks of an iteration.

    Behind it the tasks whose longest answer is furthest above the mean of their scores.
    """
    tasks = [own for own in _attempts(reader, iteration).values() if len(own) > 1]
    if len(tasks) < LEAST_TASKS:
        return None
    deviations = [_deviations(own) for own in tasks]
    sums = resampled_sums([[(x * x).sum(), (x * y).sum(), (y * y).sum()] for x, y in deviations])
    resampled = _correlation(*sums.T)
    words, scores = (np.concatenate(parts) for parts in zip(*deviations, strict=True))
    if not words.any() or not scores.any():
        return None
    longest = [
        (float(y[x.argmax()]), own[int(x.argmax())]) for (x, y), own in zip(deviations, tasks, strict=True)
    ]
    longest.sort(key=lambda row: -row[0])
    return Measured(
        float(_correlation((words * words).sum(), (words * scores).sum(), (scores * scores).sum())),
        interval_of(resampled),
        behind=tuple(
            evidence(iteration, attempt.task_id, attempt.task, attempt.answer)
            for above, attempt in longest
            if above > 0
        ),
    )


@dataclass(frozen=True)
class _Attempt:
    task_id: str
    task: str
    answer: str
    score: float


def _attempts(reader: RunReader, iteration: int) -> dict[str, list[_Attempt]]:
    """The graded answers to the first tried tasks of an iteration, by task."""
    tried = reader.sql(
        "SELECT task.id AS id, task.text AS text, rollout_ids FROM candidates WHERE iteration = ? "
        "AND stage = 'tasks' AND mean IS NOT NULL ORDER BY ordinal LIMIT ?",
        [iteration, ATTEMPTS_SAMPLE],
    )
    ids = [rollout for row in tried for rollout in row["rollout_ids"]]
    if not ids:
        return {}
    # Ids in the query itself: Bloom filters then skip most of a large file.
    marks = ", ".join("?" * len(ids))
    rows = reader.sql(
        "SELECT r.subject_id AS task, r.answer, g.score FROM rollouts r JOIN grades g ON g.rollout_id = r.id "
        "AND g.iteration = r.iteration AND g.stage = r.stage WHERE r.iteration = ? AND r.stage = 'tasks' "
        f"AND r.id IN ({marks}) AND g.score IS NOT NULL AND r.answer IS NOT NULL ORDER BY r.ordinal",
        [iteration, *ids],
    )
    texts = {row["id"]: row["text"] for row in tried}
    found: dict[str, list[_Attempt]] = {}
    for row in rows:
        attempt = _Attempt(row["task"], texts[row["task"]], row["answer"], row["score"])
        found.setdefault(row["task"], []).append(attempt)
    return found


def _deviations(attempts: Sequence[_Attempt]) -> tuple[Numbers, Numbers]:
    """Words and scores, each less its mean over the task's answers: what the task itself decides is taken out."""
    words = np.array([word_count(attempt.answer) for attempt in attempts], dtype=np.float64)
    scores = np.array([attempt.score for attempt in attempts])
    return words - words.mean(), scores - scores.mean()


def _correlation(words: Numbers, both: Numbers, scores: Numbers) -> Numbers:
    """From sums of squares and products; 0 where either never varies."""
    spread = np.sqrt(words * scores)
    return np.asarray(np.where(spread > 0, both / np.where(spread > 0, spread, 1), 0.0))
