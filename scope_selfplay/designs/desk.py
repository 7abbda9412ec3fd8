"""Asks the judge for one group and keeps the books: what was asked, what came back, what is missing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from scope_selfplay.config.rewards import Rubrics
from scope_selfplay.judge import Judge, Scale, Style, grade_rollout
from scope_selfplay.pipeline import JudgeTally
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
class Books:
    """Judge calls made for one group, those among them without a verdict, and the records of all."""

    calls: int = 0
    missing: int = 0
    grades: list[Grade] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    @property
    def missing_share(self) -> float:
        return self.missing / self.calls if self.calls else 0.0


class Unjudgeable(Exception):
    """There is no rubric to judge a group by, although one is wanted."""


class Desk:
    """One group's way to the judge. `tally` is the stage's account."""

    def __init__(self, judge: Judge, tally: JudgeTally) -> None:
        self.judge = judge
        self.books = Books()
        self._tally = tally

    async def grade(self, task: Task, rubric: Rubric, rollout: Rollout, key: Key) -> Grade:
        grade = await grade_rollout(self.judge, task, rubric, rollout, key=key)
        for verdict in grade.verdicts:
            if verdict.attempts:
                self._tally.add(verdict)
                self._book(verdict.value is None)
        self.books.grades.append(grade)
        return grade

    async def compare(
        self, task: Task, pair: tuple[Rollout, Rollout], style: Style, rubric: Rubric | None
    ) -> Outcome | None:
        """One presentation, in this order; None when no verdict came."""
        comparison = await self.judge.compare(
            task, *pair, style=style, rubric=rubric, reference=task.reference
        )
        if comparison.verdict.attempts:
            self._tally.add(comparison.verdict)
            self._book(comparison.outcome is None)
        self.books.comparisons.append(comparison)
        return comparison.outcome

    async def select(
        self, task: Task, rubric: Rubric | None, candidates: Sequence[Rollout], winners: int
    ) -> list[int] | None:
        """The numbers of the winners among the candidates shown; None when no verdict came."""
        chosen, verdict = await self.judge.select(task, rubric, candidates, winners)
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
        value, verdict = await self.judge.score(
            task, rollout.answer or "", rubric, scale=scale, reference=task.reference
        )
        if verdict.attempts:
            self._tally.add(verdict)
            self._book(value is None)
        self.books.scores.append(
            Score(rollout_id=rollout.id, scale=scale.value, value=value, criterion=criterion, verdict=verdict)
        )
        return value

    def count(self, *, missing: bool) -> None:
        """A call whose verdict the judge does not hand out."""
        self._tally.count(failed=missing)
        self._book(missing)

    def _book(self, missing: bool) -> None:
        self.books.calls += 1
        self.books.missing += missing


class RubricShelf:
    """The rubric that a judge is shown. One written from the query alone is written once per task and then kept."""

    def __init__(self, choice: Rubrics) -> None:
        self._choice = choice
        self._written: dict[str, Rubric] = {}
        self._writing: dict[str, asyncio.Future[bool]] = {}

    async def find(self, task: Task, own: Rubric, desk: Desk) -> Rubric | None:
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

    async def _once(self, task: Task, desk: Desk) -> None:
        """Several rollouts of one group may ask at the same time."""
        if task.id not in self._writing:
            self._writing[task.id] = asyncio.ensure_future(self._write(task, desk))
        if not await self._writing[task.id]:
            raise Unjudgeable

    async def _write(self, task: Task, desk: Desk) -> bool:
        try:
            rubric = await desk.judge.write_rubric(task, ())
        finally:
            del self._writing[task.id]
        desk.count(missing=rubric is None)
        if rubric is not None:
            self._written[task.id] = rubric
        return rubric is not None
