"""A judge around another one: beside every n-th call of a question it asks a canary, and it stops a stage whose judge
fails them.

Only what canaries cost differs for the stage: its own calls are passed on as they are, and nothing of a canary comes
back to it. Canaries are asked anew in every start of a stage, also where replies are kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import floor
from typing import TypeVar

from scope_selfplay.canaries.cases import CanaryCase, PickCase
from scope_selfplay.canaries.questions import (
    Canary,
    compare_canary,
    gate_canary,
    grade_canary,
    score_canary,
    select_canary,
)
from scope_selfplay.config import CanariesConfig
from scope_selfplay.errors import JudgeError
from scope_selfplay.gates import Gate
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import Judge, PointwiseScore, Scale, Selected, Style
from scope_selfplay.keys import Key, rng_from, seed_from
from scope_selfplay.measures import Mean, Measure, Total
from scope_selfplay.schemas import Comparison, Criterion, Document, Rollout, Rubric, Task, Verdict
from scope_selfplay.store import Appender, RunFolder, Stage
from scope_selfplay.store.judge_checks import CanaryVerdict, new_log, share_interval

T = TypeVar("T")
MakeCanary = Callable[[int], Canary | None]


class CanaryWatch:
    """A `Judge`. `rate` is the number of canaries per call of each question."""

    def __init__(
        self,
        judge: Judge,
        settings: CanariesConfig,
        pick: PickCase,
        *,
        rate: float,
        place: tuple[RunFolder, int, Stage],
        seed: int,
    ) -> None:
        self.identity = judge.identity
        self.verdicts: list[CanaryVerdict] = []
        self._judge = judge
        self._settings = settings
        self._pick = pick
        self._rate = rate
        self._folder, self._iteration, self._stage = place
        self._key: Key = (seed, "canary")
        self._calls: dict[str, int] = {}
        self._log: Appender | None = None
        self._asked = judge
        self._measured = 0

    def measures(self) -> dict[str, Measure]:
        """Of the canaries since this was last asked: how many, and the share that was judged right."""
        new, self._measured = self.verdicts[self._measured :], len(self.verdicts)
        read = [each for each in new if each.found is not None]
        return {
            "canaries": Total(len(new)),
            "canary_accuracy": Mean.of([float(each.is_right) for each in read]),
        }

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        call = self._judge.gate(gate, task, document)
        return await self._beside(
            call, gate.label, lambda number: gate_canary(gate, self._case(number), number)
        )

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        """No rubric is known to be the right one."""
        return await self._judge.write_rubric(task, documents)

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        call = self._judge.grade(task, criterion, answer, key=key)
        return await self._beside(
            call, "grade", lambda number: grade_canary(self._case(number), number, (*self._key, number))
        )

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
        call = self._judge.compare(task, first, second, style=style, rubric=rubric, repeat=repeat)
        return await self._beside(
            call, f"compare_{style}", lambda number: compare_canary(self._case(number), number, style)
        )

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        call = self._judge.select(task, rubric, candidates, winners, repeat=repeat)
        return await self._beside(call, "select", lambda number: select_canary(self._case(number), number))

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        call = self._judge.score(task, rollout, rubric, scale=scale)
        return await self._beside(
            call, f"score_{scale}", lambda number: score_canary(self._case(number), number, scale)
        )

    async def _beside(self, call: Awaitable[T], question: str, make: MakeCanary) -> T:
        calls = self._calls[question] = self._calls.get(question, 0) + 1
        number = floor(calls * self._rate)
        if number == floor((calls - 1) * self._rate):
            return await call
        log = self._begun_log()
        canary = make(number - 1)
        if canary is None:
            return await call
        found, _ = await asyncio.gather(call, self._ask(question, canary, log))
        return found

    def _begun_log(self) -> Appender:
        """The file of this start, made by its first canary."""
        if self._log is None:
            path = new_log(self._folder, self._iteration, self._stage)
            self._log = Appender(path)
            self._key = (*self._key, path.name)
            if isinstance(self._judge, ModelJudge):
                # What an earlier start was told, or another run that shares the cache, is no news of the judge of now.
                self._asked = self._judge.apart(seed_from(path.name, path.stat().st_mtime_ns))
        return self._log

    def _case(self, number: int) -> CanaryCase:
        return self._pick(rng_from(*self._key, number))

    async def _ask(self, question: str, canary: Canary, log: Appender) -> None:
        reply = await canary.ask(self._asked)
        verdict = CanaryVerdict(
            iteration=self._iteration,
            stage=self._stage,
            role=canary.role,
            question=question,
            kind=canary.kind,
            task=canary.case.task,
            criterion=canary.case.criterion,
            shown=canary.shown,
            expected=canary.expected,
            found=reply.value,
            verdict=reply.verdict,
        )
        self.verdicts.append(verdict)
        log.append(verdict)
        if isinstance(self._judge, ModelJudge):
            outcome = "unread" if verdict.found is None else "right" if verdict.is_right else "wrong"
            self._judge.metrics.count_canary(verdict.role, verdict.kind, outcome)
        self._check(verdict)

    def _check(self, newest: CanaryVerdict) -> None:
        """Raises JudgeError where the judge fails the canaries of the newest one's role, or those of its kind."""
        of_role = [each for each in self.verdicts if each.role is newest.role and each.found is not None]
        of_kind = [each for each in of_role if each.kind is newest.kind]
        for group, words in ((of_role, newest.role.value), (of_kind, f"{newest.role.value}, {newest.kind}")):
            right, read = sum(each.is_right for each in group), len(group)
            if read >= self._settings.enough and share_interval(right, read)[1] < self._settings.least:
                stage = self._folder.stage(self._iteration, self._stage).path
                raise JudgeError(
                    f"the judge fails its canaries ({words}): {right} of {read} questions with a known verdict were "
                    f"judged right, judge.canaries.least expects {self._settings.least:.0%} ({self._folder.canaries} "
                    "has them); see that the right model is served and reads its prompts, run the same command again; "
                    f"remove {stage} and the judge's cache before, if what it has judged so far shall not count"
                )
