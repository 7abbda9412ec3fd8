"""The one place where judge calls are accounted: counted, held against the failure budget, bounded, recorded.

A stage has one `MeteredJudge` around its judge; what is judged group by group gets a child (`for_group`) that counts
into the same tally and keeps records of its own.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from scope_selfplay.base.errors import JudgeError
from scope_selfplay.base.values import (
    Fault,
    Grade,
    Key,
    Outcome,
    Rollout,
    RolloutStatus,
    Rubric,
    Task,
    Value,
    Verdict,
)
from scope_selfplay.judge.fences import is_opener
from scope_selfplay.judge.protocol import Judge, Question, Reply, RubricQuestion, failed, grade_answer
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.ranking.matches import ComparisonGraph
from scope_selfplay.store.files import read_value

T = TypeVar("T")
V = TypeVar("V", bound=Value)

ACCOUNT = "judge.json"
ENOUGH_CALLS = 50
"""A failure rate over fewer judgements says little."""
_NOT_ASKED = failed(Fault.REFUSED, "the allowance of judge calls is used up", attempts=0)


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
    """The calls of a stage or of a group, those among them without a verdict, by fault or without, and the records of
    all.

    `graph`: who met whom in a tournament and what came out, in the order of its plan. `stand_in_anchor`: a sampled
    rollout took the place of the greedy one, which had no answer.
    """

    calls: int = 0
    failed: int = 0
    missing: int = 0
    stand_in_anchor: bool = False
    graph: ComparisonGraph = field(default_factory=ComparisonGraph)
    values: list[Value] = field(default_factory=list)

    def count(self, verdict: Verdict, *, missing: bool) -> None:
        """One that took no call is not counted."""
        if verdict.attempts:
            self.calls += 1
            self.failed += verdict.fault is not None
            self.missing += missing

    def of(self, kind: type[V]) -> list[V]:
        """Those records that are of one kind."""
        return [value for value in self.values if isinstance(value, kind)]


class MeteredJudge:
    """A judge around another one. `tally` is the stage's account, `records` are this judge's own.

    With an `allowance` never more calls are made: what goes beyond it is not asked and has no verdict, and
    `overdrawn` says that this has happened, so that nothing may be computed from the rest.
    """

    def __init__(
        self, judge: Judge, tally: JudgeRecords | None = None, *, allowance: int | None = None
    ) -> None:
        self.tally = JudgeRecords() if tally is None else tally
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

    async def ask(self, question: Question[T]) -> Reply[T]:
        """Recorded. Without a value where a score is not a finite number.

        A rubric from documents that cannot be written leaves its candidate unresolved and counts as no call.
        """
        if not self._may_ask():
            return _NOT_ASKED
        reply = await self.judge.ask(question)
        if isinstance(reply.value, Outcome) and not all(map(math.isfinite, reply.value)):
            reply = replace(reply, value=None)
        if not (isinstance(question, RubricQuestion) and question.documents):
            self._count(reply.verdict, missing=reply.value is None)
        record = question.record(reply)
        if record is not None:
            self.records.values.append(record)
        return reply

    async def grade_rollout(self, task: Task, rubric: Rubric, rollout: Rollout, *, key: Key) -> Grade:
        """All criteria of a rubric, or none of them where the allowance does not last. Recorded."""
        if not self._may_ask(calls_to_grade(rubric, rollout)):
            return Grade(rollout_id=rollout.id, verdicts=(), score=None)
        grade = await grade_answer(self.judge, task, rubric, rollout, key=key)
        for verdict in grade.verdicts:
            self._count(verdict, missing=verdict.value is None)
        self.records.values.append(grade)
        return grade

    def _may_ask(self, calls: int = 1) -> bool:
        """Takes so many calls from the allowance, if it has them, before they are made."""
        if self._left is None:
            return True
        if self._left < calls:
            self.overdrawn = True
            return False
        self._left -= calls
        return True

    def _count(self, verdict: Verdict, *, missing: bool) -> None:
        for account in (self.tally, self.records):
            account.count(verdict, missing=missing)


def calls_to_grade(rubric: Rubric, rollout: Rollout) -> int:
    """A call for every criterion that no rule decides, where there is an answer to grade."""
    if rollout.status is RolloutStatus.FAILED or is_opener(rollout.answer):
        return 0
    return sum(criterion.check is None for criterion in rubric.criteria)


class StageAccount(Value):
    """`judge.json` of a stage: the verdicts behind its records, over all attempts, and what the last one asked a model.

    `roles`: for the prompt of each role `calls`, `asked` (completions), `cached`, `joined` (calls in flight of somebody
    else), `tokens_in` and `tokens_out` as far as they were paid for, and the calls without a verdict by their fault.
    """

    calls: int = 0
    unreadable: int = 0
    failed: int = 0
    roles: dict[PromptRole, dict[str, int]] = Field(default_factory=dict)

    @property
    def whole(self) -> Counter[str]:
        """The sums over all roles, with those of the faults as `faults`."""
        whole = sum(map(Counter, self.roles.values()), Counter[str]())
        return whole + Counter(faults=sum(whole[fault] for fault in Fault))


def read_account(folder: Path) -> StageAccount:
    """That of a stage's folder; of nothing where there is none. Raises RecordError for a damaged file."""
    return read_value(folder / ACCOUNT, StageAccount, "remove it") or StageAccount()
