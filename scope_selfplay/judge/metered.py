"""The one place where judge calls are accounted: counted, held against the failure budget, bounded, recorded.

A stage has one `MeteredJudge` around its judge; what is judged group by group gets a child (`for_group`) that counts
into the same tally and keeps records of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from scope_selfplay.errors import JudgeError
from scope_selfplay.gates import Gate
from scope_selfplay.judge.grading import grade_answer, is_opener
from scope_selfplay.judge.protocol import Judge, PointwiseScore, Scale, Selected, Style
from scope_selfplay.keys import Key
from scope_selfplay.ranking.matches import ComparisonGraph
from scope_selfplay.schemas import (
    Comparison,
    Criterion,
    Document,
    Fault,
    Grade,
    Rollout,
    RolloutStatus,
    Rubric,
    Score,
    Selection,
    Task,
    Value,
    Verdict,
)

ENOUGH_CALLS = 50
"""A failure rate over fewer judgements says little."""
_NOT_ASKED = Verdict(
    value=None, fault=Fault.REFUSED, reasoning="the allowance of judge calls is used up", attempts=0
)


@dataclass
class JudgeTally:
    """What a stage asked of the judge, for its failure budget and its report."""

    calls: int = 0
    failed: int = 0
    unreadable: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count one verdict; one that took no call is not counted."""
        if not verdict.attempts:
            return
        self.calls += 1
        self.failed += verdict.fault is not None
        self.unreadable += verdict.fault == "unreadable"


def check_failure_budget(calls: int, failed: int, budget: float, *, kinds: str = "") -> None:
    """Raises JudgeError when more judgements of a stage failed than `judge.failure_budget` allows.

    `kinds` says in the message which faults there were.
    """
    if calls >= ENOUGH_CALLS and failed > budget * calls:
        raise JudgeError(
            f"{failed} of {calls} judgements failed{kinds and f' ({kinds})'}, "
            f"judge.failure_budget allows {budget:.0%}; "
            "see that the judge is well, then run the same command again"
        )


@dataclass
class JudgeRecords:
    """The calls made through one metered judge, those among them without a verdict, and the records of all.

    `graph`: who met whom in a tournament and what came out, in the order of its plan. `stand_in_anchor`: a sampled
    rollout took the place of the greedy one, which had no answer.
    """

    calls: int = 0
    missing: int = 0
    stand_in_anchor: bool = False
    graph: ComparisonGraph = field(default_factory=ComparisonGraph)
    grades: list[Grade] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    rubrics: list[Rubric] = field(default_factory=list)

    @property
    def values(self) -> list[Value]:
        """All that is kept of the calls."""
        return [*self.grades, *self.comparisons, *self.selections, *self.scores, *self.rubrics]

    @property
    def missing_share(self) -> float:
        return self.missing / self.calls if self.calls else 0.0


class MeteredJudge:
    """A judge around another one. `tally` is the stage's account, `records` are this judge's own.

    With an `allowance` never more calls are made: what goes beyond it is not asked and has no verdict, and
    `overdrawn` says that this has happened, so that nothing may be computed from the rest.
    """

    def __init__(
        self, judge: Judge, tally: JudgeTally | None = None, *, allowance: int | None = None
    ) -> None:
        self.tally = JudgeTally() if tally is None else tally
        self.records = JudgeRecords()
        self.overdrawn = False
        self.judge = judge
        self._left = allowance

    def for_group(self, *, allowance: int | None = None) -> "MeteredJudge":
        """The same judge with records of its own, counted in the same tally."""
        return MeteredJudge(self.judge, self.tally, allowance=allowance)

    @property
    def identity(self) -> str:
        return self.judge.identity

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        return self._counted(await self.judge.gate(gate, task, document)) if self._may_ask() else _NOT_ASKED

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        """A rubric from documents that cannot be written leaves its candidate unresolved and counts as no call.

        One from the query alone is recorded: nothing else holds it.
        """
        if not self._may_ask():
            return None
        rubric = await self.judge.write_rubric(task, documents)
        if not documents:
            self.tally.calls += 1
            self.tally.failed += rubric is None
            self._count_call(missing=rubric is None)
            self.records.rubrics += [rubric] if rubric is not None else []
        return rubric

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        if not self._may_ask():
            return _NOT_ASKED
        return self._counted(await self.judge.grade(task, criterion, answer, key=key))

    async def grade_rollout(self, task: Task, rubric: Rubric, rollout: Rollout, *, key: Key) -> Grade:
        """All criteria of a rubric, or none of them where the allowance does not last. Recorded."""
        if not self._may_ask(calls_to_grade(rubric, rollout)):
            return Grade(rollout_id=rollout.id, verdicts=(), score=None)
        grade = await grade_answer(self.judge, task, rubric, rollout, key=key)
        for verdict in grade.verdicts:
            self._counted(verdict)
        self.records.grades.append(grade)
        return grade

    async def compare(
        self,
        task: Task,
        first: Rollout,
        second: Rollout,
        *,
        style: Style,
        rubric: Rubric | Criterion | None = None,
        repeat: int = 0,
    ) -> Comparison:
        """One presentation, in this order. Without outcome where a score is not a finite number. Recorded."""
        if not self._may_ask():
            return Comparison(first_id=first.id, second_id=second.id, outcome=None, verdict=_NOT_ASKED)
        comparison = await self.judge.compare(task, first, second, style=style, rubric=rubric, repeat=repeat)
        if comparison.outcome is not None and not all(map(math.isfinite, comparison.outcome)):
            comparison = comparison.model_copy(update={"outcome": None})
        if repeat:
            comparison = comparison.model_copy(update={"repeat": repeat})
        self._counted(comparison.verdict, missing=comparison.outcome is None)
        self.records.comparisons.append(comparison)
        return comparison

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        """Recorded, the candidates in the order shown."""
        if not self._may_ask():
            return Selected(None, _NOT_ASKED)
        numbers, verdict = selected = await self.judge.select(
            task, rubric, candidates, winners, repeat=repeat
        )
        self._counted(verdict, missing=numbers is None)
        self.records.selections.append(
            Selection(
                candidate_ids=tuple(candidate.id for candidate in candidates),
                winner_ids=None if numbers is None else tuple(candidates[number].id for number in numbers),
                repeat=repeat,
                verdict=verdict,
            )
        )
        return selected

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        if not self._may_ask():
            return PointwiseScore(None, _NOT_ASKED)
        score = await self.judge.score(task, rollout, rubric, scale=scale)
        self._counted(score.verdict, missing=score.value is None)
        return score

    async def score_rollout(
        self,
        task: Task,
        rollout: Rollout,
        rubric: Rubric | Criterion | None,
        scale: Scale,
        *,
        criterion: int | None = None,
    ) -> float | None:
        """A rollout on the scale's own range; None when no verdict came. Recorded."""
        value, verdict = await self.score(task, rollout, rubric, scale=scale)
        if verdict is _NOT_ASKED:
            return None
        self.records.scores.append(
            Score(rollout_id=rollout.id, scale=scale.value, value=value, criterion=criterion, verdict=verdict)
        )
        return value

    def _may_ask(self, calls: int = 1) -> bool:
        """Takes so many calls from the allowance, if it has them, before they are made."""
        if self._left is None:
            return True
        if self._left < calls:
            self.overdrawn = True
            return False
        self._left -= calls
        return True

    def _counted(self, verdict: Verdict, *, missing: bool | None = None) -> Verdict:
        if verdict.attempts:
            self.tally.add(verdict)
            self._count_call(missing=verdict.value is None if missing is None else missing)
        return verdict

    def _count_call(self, *, missing: bool) -> None:
        self.records.calls += 1
        self.records.missing += missing


def calls_to_grade(rubric: Rubric, rollout: Rollout) -> int:
    """A call for every criterion that no rule decides, where there is an answer to grade."""
    if rollout.status is RolloutStatus.FAILED or rollout.answer is None or is_opener(rollout.answer):
        return 0
    return sum(criterion.check is None for criterion in rubric.criteria)
