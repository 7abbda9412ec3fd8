"""Answers to one task side by side: what the task page and the comparison page are drawn from. Pure."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from scope_selfplay.schemas import Candidate, Verdict
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.query import GradedRollout, HeldOutScore


class Sheet(NamedTuple):
    """Attempts of one stage, in a row. `key` is unique on a page and begins the anchors of its cells."""

    key: str
    title: str
    attempts: tuple[GradedRollout, ...]


class TaskChange(NamedTuple):
    """A held-out task and what two checkpoints scored on it; None where a score is missing."""

    task_id: str
    text: str
    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


_TITLES = {
    Stage.TASKS: "Attempts that measured its difficulty",
    Stage.CHALLENGER: "Attempts while the Challenger was trained",
    Stage.SOLVER: "Attempts while the Solver was trained",
    Stage.COMPARE: "Answers of the checkpoints that were compared",
}


def sheets(own: Sequence[GradedRollout], every: Iterable[GradedRollout]) -> list[Sheet]:
    """The attempts of the candidate itself first, then those of other stages in the order of the loop."""
    ids = {each.rollout.id for each in own}
    others = [each for each in every if each.rollout.id not in ids]
    found = [Sheet("own", _TITLES[own[0].stage], tuple(own))] if own else []
    for (iteration, stage), group in groupby(others, lambda each: (each.iteration, each.stage)):
        title = f"{_TITLES[stage]}, iteration {iteration}"
        found.append(Sheet(f"{stage.value}-{iteration}", title, tuple(group)))
    return found


def verdicts_of(attempt: GradedRollout, criteria: int) -> list[Verdict | None]:
    """One per criterion; None where the attempt has no verdict on it."""
    given: tuple[Verdict, ...] = attempt.grade.verdicts if attempt.grade else ()
    return [*given, *[None] * (criteria - len(given))][: max(criteria, len(given))]


def criteria_of(candidate: Candidate, attempts: Iterable[GradedRollout]) -> int:
    """How many columns the verdict matrix has."""
    written = len(candidate.rubric.criteria) if candidate.rubric else 0
    return max([written, *(len(each.grade.verdicts) for each in attempts if each.grade)])


def short_name(checkpoint: str) -> str:
    """`S_1` of `S_1-0badcafe`: what a person calls a checkpoint."""
    return checkpoint.partition("-")[0]


def checkpoint_names(scores: Iterable[HeldOutScore]) -> list[str]:
    """The checkpoints that answered held-out tasks, oldest first."""
    return list(dict.fromkeys(short_name(each.checkpoint) for each in scores))


def held_out_scores(scores: Iterable[HeldOutScore], name: str) -> dict[str, float | None]:
    return {each.task_id: each.score for each in scores if short_name(each.checkpoint) == name}


def in_order(changes: Iterable[TaskChange], sort: str) -> list[TaskChange]:
    """By `change` (most changed first), `gain` or `loss`; tasks without both scores last."""
    keys: dict[str, Callable[[float], float]] = {
        "change": lambda gain: -abs(gain),
        "gain": lambda gain: -gain,
        "loss": lambda gain: gain,
    }
    key = keys[sort]
    return sorted(
        changes,
        key=lambda each: (each.gain is None, 0.0 if each.gain is None else key(each.gain), each.task_id),
    )
