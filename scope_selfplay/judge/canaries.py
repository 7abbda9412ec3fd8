"""Questions with known verdicts beside those of a running stage, and the stop where a judge gets them wrong."""

import asyncio
from dataclasses import replace
from math import floor
from typing import TypeVar

from scope_selfplay.base.errors import JudgeError
from scope_selfplay.base.values import Key, rng_from, seed_from
from scope_selfplay.judge.cases import Canary, PickCase, canary_of
from scope_selfplay.judge.checks import CanaryKind, CanaryVerdict, new_log, share_interval
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import Judge, Question, Reply, RubricQuestion
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.rewards.measures import Mean, Measure, Total
from scope_selfplay.store.files import Appender
from scope_selfplay.store.folder import RunFolder, Stage

T = TypeVar("T")


LEAST = 0.7
"""Share of the canaries of one role, and of one kind of them, that a judge has to get right: a stage stops where the
99 % interval of the share lies below."""
ENOUGH = 10
"""Canaries of a role or kind below which nothing is stopped."""


class CanaryWatch:
    """A `Judge`. `rate` is the number of canaries per call of each question."""

    def __init__(
        self, judge: Judge, pick: PickCase, *, rate: float, place: tuple[RunFolder, int, Stage], seed: int
    ) -> None:
        self.identity = judge.identity
        self.verdicts: list[CanaryVerdict] = []
        self._judge = judge
        self._pick = pick
        self._rate = rate
        self._folder, self._iteration, self._stage = place
        self._key: Key = (seed, "canary")
        self._calls: dict[str, int] = {}
        self._log: Appender | None = None
        self._start = 0
        self._measured = 0

    def measures(self) -> dict[str, Measure]:
        """Of the canaries since this was last asked: how many, and the share that was judged right."""
        new, self._measured = self.verdicts[self._measured :], len(self.verdicts)
        read = [each for each in new if each.found is not None]
        return {
            "canaries": Total(len(new)),
            "canary_accuracy": Mean.of([float(each.is_right) for each in read]),
        }

    async def ask(self, question: Question[T]) -> Reply[T]:
        number = self._due(question)
        canary = None
        if number is not None:
            log = self._begun_log()
            canary = canary_of(question, self._pick(rng_from(*self._key, number)), number, self._key)
        if canary is None:
            return await self._judge.ask(question)
        found, _ = await asyncio.gather(self._judge.ask(question), self._ask(canary, log))
        return found

    def _due(self, question: Question[T]) -> int | None:
        """The number of the canary that this call of a question is to have beside it."""
        if isinstance(question, RubricQuestion):
            # No rubric is known to be the right one.
            return None
        calls = self._calls[question.name] = self._calls.get(question.name, 0) + 1
        number = floor(calls * self._rate)
        return None if number == floor((calls - 1) * self._rate) else number - 1

    def _begun_log(self) -> Appender:
        """The file of this start, made by its first canary."""
        if self._log is None:
            path = new_log(self._folder, self._iteration, self._stage)
            self._log = Appender(path)
            self._key = (*self._key, path.name)
            if isinstance(self._judge, ModelJudge):
                # What an earlier start was told, or another run that shares the cache, is no news of the judge of now.
                self._start = seed_from(path.name, path.stat().st_mtime_ns)
        return self._log

    async def _ask(self, canary: Canary, log: Appender) -> None:
        question = canary.question
        reply = await self._judge.ask(replace(question, repeat=question.repeat + self._start))
        verdict = CanaryVerdict(
            iteration=self._iteration,
            stage=self._stage,
            role=ROLE_OF_PROMPT[canary.question.role],
            question=canary.question.name,
            kind=canary.kind,
            task=canary.case.task,
            criterion=canary.case.criterion,
            shown=canary.shown,
            expected=canary.expected,
            found=None if reply.value is None else canary.read(reply.value),
            verdict=reply.verdict,
        )
        self.verdicts.append(verdict)
        log.append(verdict)
        self._check(verdict)

    def _check(self, newest: CanaryVerdict) -> None:
        """Raises JudgeError where the judge fails the canaries of the newest one's role, or those of its kind."""
        of_role = [each for each in self.verdicts if each.role is newest.role and each.found is not None]
        groups = {newest.role.value: of_role}
        # Small judges overlook what is missing or changed: their exam says how often, and this looks for news.
        if newest.kind not in (CanaryKind.PARTIAL, CanaryKind.ALTERED):
            groups[f"{newest.role}, {newest.kind}"] = [each for each in of_role if each.kind is newest.kind]
        for words, group in groups.items():
            right, read = sum(each.is_right for each in group), len(group)
            if read >= ENOUGH and share_interval(right, read)[1] < LEAST:
                stage = self._folder.stage(self._iteration, self._stage).path
                raise JudgeError(
                    f"the judge fails its canaries ({words}): {right} of {read} questions with a known verdict were "
                    f"judged right, at least {LEAST:.0%} expected ({self._folder.canaries} "
                    "has them); see that the right model is served and reads its prompts, run the same command again; "
                    f"remove {stage} and the judge's cache before, if what it has judged so far shall not count"
                )
