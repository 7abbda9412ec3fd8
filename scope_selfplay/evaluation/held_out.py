"""Held-out scores: means with bootstrap intervals over tasks, and where they come from. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scope_selfplay.embedded.language import read_question
from scope_selfplay.schemas import Candidate, Grade, Task, numpy_rng_from
from scope_selfplay.store.ratings import ScoreEstimate


class Answered(NamedTuple):
    """A held-out task and one checkpoint's grade on it."""

    candidate: Candidate
    grade: Grade


def family(task: Task) -> str:
    """The kind of task a score is reported by: links to follow where they can be read, else type and searches."""
    question = read_question(task.text)
    if question is not None:
        return f"{question.hops} link{'' if question.hops == 1 else 's'}"
    return f"{task.type}, {task.search_turns} searches"


def estimate(scores: Sequence[float], *, seed: int, resamples: int) -> ScoreEstimate | None:
    """The mean with a percentile bootstrap over tasks; None without scores."""
    if not scores:
        return None
    low, high = bootstrap(scores, seed=seed, resamples=resamples)
    return ScoreEstimate(mean_score=float(np.mean(scores)), low=low, high=high, tasks=len(scores))


def bootstrap(values: Sequence[float], *, seed: int, resamples: int) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of the mean under resampling."""
    data = np.asarray(values)
    draws = numpy_rng_from(seed, "bootstrap").integers(len(data), size=(resamples, len(data)))
    low, high = np.percentile(data[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def breakdown(answered: Sequence[Answered], *, seed: int, resamples: int) -> dict[str, ScoreEstimate]:
    """Estimates for all tasks, for asked and hidden criteria apart, and by family; in this order."""
    groups: dict[str, list[float]] = {
        "all": [each.grade.score for each in answered if each.grade.score is not None]
    }
    for dimension in ("asked", "hidden"):
        groups[f"{dimension} criteria"] = _by_dimension(answered, dimension)
    for each in sorted(answered, key=lambda item: family(_task(item))):
        if each.grade.score is not None:
            groups.setdefault(family(_task(each)), []).append(each.grade.score)
    found = {name: estimate(scores, seed=seed, resamples=resamples) for name, scores in groups.items()}
    return {name: value for name, value in found.items() if value is not None}


def _by_dimension(answered: Sequence[Answered], dimension: str) -> list[float]:
    """Each task's share of met criteria among those of a dimension; a missing verdict is left out."""
    scores: list[float] = []
    for candidate, grade in answered:
        assert candidate.rubric is not None
        pairs = zip(candidate.rubric.criteria, grade.verdicts, strict=False)
        verdicts = [verdict.value for criterion, verdict in pairs if criterion.dimension == dimension]
        met = [value for value in verdicts if value is not None]
        if met:
            scores.append(sum(met) / len(met))
    return scores


def _task(answered: Answered) -> Task:
    assert answered.candidate.task is not None
    return answered.candidate.task
