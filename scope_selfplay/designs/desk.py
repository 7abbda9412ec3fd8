"""Asks the judge for one group and keeps the books: what was asked, what came back, what is missing."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from scope_selfplay.config.rewards import Rubrics
from scope_selfplay.judge import Judge, Scale, Style, grade_rollout
from scope_selfplay.judge.protocol import DIMENSIONS
from scope_selfplay.pipeline import JudgeTally
from scope_selfplay.reward_designs.answers import is_entrant
from scope_selfplay.schemas import (
    Comparison,
    Criterion,
    Grade,
    Key,
    Outcome,
    Rollout,
    Rubric,
    Score,
    Selection,
    Task,
)


@dataclass
class JudgeRecords:
    """Judge calls made for one group, those among them without a verdict, and the records of all.

    `stand_in_anchor`: a sampled rollout took the place of the greedy one, which had no answer.
    """

    calls: int = 0
    missing: int = 0
    stand_in_anchor: bool = False
    grades: list[Grade] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    @property
    def missing_share(self) -> float:
        return self.missing / self.calls if self.calls else 0.0


def calls_to_grade(rubric: Rubric, rollout: Rollout) -> int:
    """A call for every criterion that no rule decides, where there is an answer to grade."""
    return sum(each.check is None for each in rubric.criteria) if is_entrant(rollout) else 0


class Unjudgeable(Exception):
    """There is no rubric to judge a group by, although one is wanted."""


class MeteredJudge:
    """One group's way to the judge. `tally` is the stage's account.

    With an `allowance` never more calls are made: what goes beyond it is not asked and has no verdict, and
    `overdrawn` says that this has happened, so that nothing may be made of the rest.
    """

    def __init__(self, judge: Judge, tally: JudgeTally, *, allowance: int | None = None) -> None:
        self.books = JudgeRecords()
        self.overdrawn = False
        self._judge = judge
        self._tally = tally
        self._left = allowance

    async def grade(self, task: Task, rubric: Rubric, rollout: Rollout, key: Key) -> Grade:
        if not self._may_ask(calls_to_grade(rubric, rollout)):
            return Grade(rollout_id=rollout.id, verdicts=(), score=None)
        grade = await grade_rollout(self._judge, task, rubric, rollout, key=key)
        for verdict in grade.verdicts:
            if verdict.attempts:
                self._tally.add(verdict)
                self._book(verdict.value is None)
        self.books.grades.append(grade)
        return grade

    async def compare(
        self, task: Task, pair: tuple[Rollout, Rollout], style: Style, rubric: Rubric | None
    ) -> Outcome | None:
        """One presentation, in this order; None when no verdict came, or one with a score that is no number."""
        if not self._may_ask():
            return None
        comparison = await self._judge.compare(
            task, *pair, style=style, rubric=rubric, reference=task.reference
        )
        if comparison.outcome is not None and not all(map(math.isfinite, comparison.outcome)):
            comparison = comparison.model_copy(update={"outcome": None})
        if comparison.verdict.attempts:
            self._tally.add(comparison.verdict)
            self._book(comparison.outcome is None)
        self.books.comparisons.append(comparison)
        return comparison.outcome

    async def select(
        self, task: Task, rubric: Rubric | None, candidates: Sequence[Rollout], winners: int
    ) -> list[int] | None:
        """The numbers of the winners among the candidates shown; None when no verdict came."""
        if not self._may_ask():
            return None
        chosen, verdict = await self._judge.select(task, rubric, candidates, winners)
        if verdict.attempts:
            self._tally.add(verdict)
            self._book(chosen is None)
        self.books.selections.append(
            Selection(
                candidate_ids=tuple(each.id for each in candidates),
                winner_ids=None if chosen is None else tuple(candidates[number].id for number in chosen),
                verdict=verdict,
            )
        )
        return chosen

    async def score(
        self,
        task: Task,
        rollout: Rollout,
        rubric: Rubric | Criterion | None,
        scale: Scale,
        *,
        criterion: int | None = None,
    ) -> float | None:
        """On the scale's own range; None when no verdict came."""
        if not self._may_ask():
            return None
        value, verdict = await self._judge.score(
            task, rollout.answer or "", rubric, scale=scale, reference=task.reference
        )
        if verdict.attempts:
            self._tally.add(verdict)
            self._book(value is None)
        self.books.scores.append(
            Score(rollout_id=rollout.id, scale=scale.value, value=value, criterion=criterion, verdict=verdict)
        )
        return value

    async def write_rubric(self, task: Task) -> Rubric | None:
        """From the query alone; None when the judge could not."""
        if not self._may_ask():
            return None
        rubric = await self._judge.write_rubric(task, ())
        self._count(missing=rubric is None)
        return rubric

    def _may_ask(self, calls: int = 1) -> bool:
        """Takes so many calls from the allowance, if it has them, before they are made."""
        if self._left is None:
            return True
        if self._left < calls:
            self.overdrawn = True
            return False
        self._left -= calls
        return True

    def _count(self, *, missing: bool) -> None:
        """A call whose verdict the judge does not hand out."""
        self._tally.count(failed=missing)
        self._book(missing)

    def _book(self, missing: bool) -> None:
        self.books.calls += 1
        self.books.missing += missing


class RubricSource:
    """The rubric that a judge is shown. One written from the query alone is written once per task and then kept."""

    def __init__(self, choice: Rubrics) -> None:
        self._choice = choice
        self._written: dict[str, Rubric] = {}
        self._writing: dict[str, asyncio.Future[bool]] = {}

    def most_calls(self, task: Task) -> int:
        """Judge calls that finding the rubric of a task may take."""
        return int(self._choice == "query" and task.id not in self._written)

    def most_criteria(self, task: Task, own: Rubric) -> int:
        """So many at most; of one that is not written yet as many as the paper's writer may give."""
        known = own if self._choice == "task" else self._written.get(task.id)
        return max(DIMENSIONS) if known is None else len(known.criteria)

    async def find(self, task: Task, own: Rubric, desk: MeteredJudge) -> Rubric | None:
        """None where none is wanted. Raises Unjudgeable where the judge could not write one."""
        match self._choice:
            case "task":
                return own
            case "none":
                return None
            case "query":
                if task.id not in self._written:
                    await self._once(task, desk)
                return self._written[task.id]

    async def _once(self, task: Task, desk: MeteredJudge) -> None:
        """Several rollouts of one group may ask at the same time."""
        if task.id not in self._writing:
            self._writing[task.id] = asyncio.ensure_future(self._write(task, desk))
        if not await self._writing[task.id]:
            raise Unjudgeable

    async def _write(self, task: Task, desk: MeteredJudge) -> bool:
        try:
            rubric = await desk.write_rubric(task)
        finally:
            del self._writing[task.id]
        if rubric is not None:
            self._written[task.id] = rubric
        return rubric is not None
