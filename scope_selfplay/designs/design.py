"""The interface of a reward design: a finished or still growing group in, one reward per rollout out.

    async def rewards(self, group: RolloutGroup, judge: MeteredJudge) -> list[float | None]

`group` holds a task, its rubric and its rollouts as futures; `judge` counts and records its calls. A reward is
None where judging failed or the rollout did, and 0 (plus the paper's format part, if it has one) where there was no
valid answer to judge. Routing, masks and metrics are `step_rewards`' work, whatever the design.

A new design is a class in a module of this package, found by its `name`, and a settings class with that `design` in
config/training.py, which also joins `AnyReward` there. The shortest one rewards every answer by itself:

    class BrevityDesign(PerAnswerDesign[BrevityReward]):        # class BrevityReward(RewardSettings):
        name = "brevity"                                        #     design: Literal["brevity"] = "brevity"

        async def answer_reward(self, group, rollout, judge):
            grade = await judge.grade_rollout(group.task, group.rubric, rollout, key=(*group.key, rollout.id))
            return None if grade.score is None else grade.score / (1 + self.count_tokens(rollout.answer) / 1000)

`ComparisonDesign` and `TournamentDesign` compare answers instead; `RewardDesign` leaves everything to `rewards`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from scope_selfplay.base.sampling import Generate, PolicyModel, Sample
from scope_selfplay.base.values import Key, Outcome, Rollout, RolloutStatus, Rubric, Task
from scope_selfplay.config.training import RewardSettings, Rubrics, SolverConfig
from scope_selfplay.designs.answers import Entrants, Rewards, entrants_of
from scope_selfplay.judge.account import JudgeRecords, MeteredJudge
from scope_selfplay.judge.fences import View, is_opener, without_thoughts
from scope_selfplay.judge.protocol import DIMENSIONS, PairQuestion, RubricQuestion, SelectQuestion, Style


class Arrivals:
    """The order in which the rollouts of a group count as finished.

    By default the order in which they finish. `deterministic`: the order of (tokens generated, number), as if all
    were generated side by side; a finished rollout waits until no other can come before it any more, which the tokens
    that the others have generated so far decide.
    """

    def __init__(self, size: int, *, deterministic: bool) -> None:
        self._tokens = [0] * size
        self._waiting = set(range(size))
        self._finished: list[int] = []
        self._deterministic = deterministic
        self._changed = asyncio.Event()

    def generated(self, number: int, tokens: int) -> None:
        """A rollout has generated this many tokens more."""
        self._tokens[number] += tokens
        self._changed.set()

    def counting(self, model: PolicyModel, number: int) -> PolicyModel:
        """`model`, which says here what it generates for a rollout."""
        return _Counting(model, self, number)

    def finish(self, number: int) -> None:
        self._finished.append(number)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[int]:
        """Every number once. One reader only."""
        while self._waiting:
            while (number := self._next()) is None:
                self._changed.clear()
                await self._changed.wait()
            self._waiting.remove(number)
            yield number

    def _next(self) -> int | None:
        if not self._deterministic:
            return next((number for number in self._finished if number in self._waiting), None)
        first = min(self._waiting, key=lambda number: (self._tokens[number], number))
        return first if first in self._finished else None


@dataclass(frozen=True)
class _Counting:
    model: PolicyModel
    arrivals: Arrivals
    number: int

    @property
    def identity(self) -> str:
        return self.model.identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        sample = await self.model.generate(request, key)
        self.arrivals.generated(self.number, len(sample.ids))
        return sample


@dataclass(frozen=True)
class RolloutGroup:
    """`rollouts` are futures of one event loop, in the order of the group's members; `key` names its draws.

    `arrivals` gives every member once, by number, when it counts as finished; `in_order`: whatever the timing.
    """

    task: Task
    rubric: Rubric
    rollouts: Sequence["asyncio.Future[Rollout]"]
    arrivals: AsyncIterable[int]
    key: Key
    in_order: bool = True

    async def all_rollouts(self) -> list[Rollout]:
        return list(await asyncio.gather(*self.rollouts))


T = TypeVar("T")


class Peers(Protocol):
    @property
    def number(self) -> int:
        """Which of them this process is; the groups of a step are dealt out in this order."""
        ...

    async def gather(self, what: str, own: T) -> list[T]:
        """What every process gave, by number: all come here, for the same thing, and each waits for the others."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """What the first process to ask for `name` makes, in every process that asks."""
        ...


class Alone:
    """One process that has the whole step."""

    number = 0

    async def gather(self, what: str, own: T) -> list[T]:
        return [own]

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        return await make()


S = TypeVar("S", bound=RewardSettings)


@dataclass(frozen=True)
class JudgedGroup:
    """A finished group with its rewards, and the records of the design's calls.

    `own_records` are those of the rewards by which groups are routed. `routed`: the rewards are the design's, not
    those. `left_out`: the group should have been routed, and the budget did not last. `verified`: what a verifier says
    of the rollouts, whatever they are rewarded with; None where no verifier was asked.
    """

    group: RolloutGroup
    rollouts: Sequence[Rollout]
    rewards: Rewards
    records: JudgeRecords
    own_records: JudgeRecords | None = None
    routed: bool = False
    left_out: bool = False
    verified: Rewards | None = None

    @property
    def by_design(self) -> bool:
        return self.routed or self.own_records is None


class RewardDesign(ABC, Generic[S]):
    """`settings` are the design's own, `solver_settings` those around them; `count_tokens` counts a text's tokens.

    `while_generating`: the design judges rollouts as they arrive (`group.arrivals`), not when all are finished.
    `pools`: its rewards depend on what the whole step says about the judge (`evidence`).
    """

    name: ClassVar[str]
    while_generating = False
    pools = False

    def __init__(
        self, settings: S, solver_settings: SolverConfig, count_tokens: Callable[[str], int]
    ) -> None:
        self.settings = settings
        self.solver_settings = solver_settings
        self.count_tokens = count_tokens
        choice: Rubrics = getattr(settings, "rubrics", "task")
        self.rubric_source = RubricSource(choice)

    @property
    def view(self) -> View:
        """What of a rollout the design has judged: equal views are one entrant, which is judged once."""
        return View.ANSWER

    def as_judged(self, rollout: Rollout) -> Rollout:
        """What of a rollout the judge may see: without its thoughts, where the settings leave them out."""
        return rollout if getattr(self.settings, "thoughts", True) else without_thoughts(rollout)

    def entrants(self, rollouts: Sequence[Rollout]) -> Entrants:
        return entrants_of([self.as_judged(rollout) for rollout in rollouts], self.view)

    def verifies(self, task: Task) -> bool:
        """Whether a reward for this task says that its answer is right (1) or wrong (0)."""
        return False

    @property
    def has_anchor(self) -> bool:
        """Whether the group's first member is sampled greedily; it enters and is trained on like the others."""
        return False

    @abstractmethod
    async def rewards(self, group: RolloutGroup, judge: MeteredJudge) -> Rewards: ...

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        """The most judge calls that a group with these entrants can take, the writing of a rubric included.

        `solver.routing.budget` reserves as many, and cuts off a design that asks more. Unless a design knows better:
        every answer graded by every criterion, or every ordered pair of answers compared.
        """
        answers = len(entrants.members)
        return self.rubric_source.most_calls(task, rubric) + answers * max(answers - 1, len(rubric.criteria))

    def evidence(self, judged: Sequence[JudgedGroup]) -> list[Any]:
        """What these groups say about the judge, a value for each, for a design that `pools` it over a step."""
        return []

    def refit(self, judged: Sequence[JudgedGroup], of_step: Sequence[Any]) -> list[Rewards]:
        """The rewards of these groups, which the design has judged, once the whole step is. Pure.

        `of_step` is the evidence of all groups of the step, which may be in several processes.
        """
        return [group.rewards for group in judged]


class PerRolloutDesign(RewardDesign[S]):
    """Judges each rollout by itself as soon as it is finished; only such rewards can decide where a group goes."""

    async def rewards(self, group: RolloutGroup, judge: MeteredJudge) -> Rewards:
        numbers = range(len(group.rollouts))
        return list(await asyncio.gather(*(self.reward(group, number, judge) for number in numbers)))

    @abstractmethod
    async def reward(self, group: RolloutGroup, number: int, judge: MeteredJudge) -> float | None:
        """The reward of one member, once it is finished."""


class PerAnswerDesign(PerRolloutDesign[S]):
    """Judges valid answers only."""

    async def reward(self, group: RolloutGroup, number: int, judge: MeteredJudge) -> float | None:
        rollout = await group.rollouts[number]
        if rollout.status is RolloutStatus.FAILED:
            return None
        if is_opener(rollout.answer):
            return self.without_answer(group, rollout)
        with suppress(Unjudgeable):
            return await self.answer_reward(group, rollout, judge)
        return None

    @abstractmethod
    async def answer_reward(self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge) -> float | None:
        """The reward of a valid answer; None where no verdict came."""

    def without_answer(self, group: RolloutGroup, rollout: Rollout) -> float:
        """The reward of a rollout without a valid answer: the paper's format part, if it has one."""
        return 0.0


class ComparisonDesign(RewardDesign[S]):
    """Judges the rollouts of a group against each other: strengths first, rewards from them.

    `alone` is the strength of an entrant without an opponent, the same as that of all when all are equal. `style` is
    how pairs of whole traces are judged; None for a design that has answers selected.
    """

    alone = 0.0

    @property
    def style(self) -> Style | None:
        return None

    @property
    def view(self) -> View:
        return View.ANSWER if self.style is None else self.style.view

    @property
    def in_pairs(self) -> bool:
        """Whether the judge sees two entrants at a time."""
        return True

    def planned_calls(self, entrants: int) -> int:
        """Judge calls for so many entrants, all different: every pair once."""
        return entrants * (entrants - 1) // 2

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        different = entrants.different
        planned = self.planned_calls(len(entrants.members)) if different > 1 else 0
        if self.in_pairs:
            # Equals do not meet, and a pair is judged once in each order.
            planned = min(planned, different * (different - 1))
        return planned and planned + self.rubric_source.most_calls(task, rubric)

    async def compare(
        self,
        group: RolloutGroup,
        pair: Sequence[Rollout],
        judge: MeteredJudge,
        rubric: Rubric | None,
        *,
        repeat: int = 0,
    ) -> Outcome | None:
        """One presentation of a pair, in the design's style; another `repeat` of it is judged anew."""
        if self.style is None:
            chosen = (await judge.ask(SelectQuestion(group.task, rubric, pair, 1, repeat=repeat))).value
            return None if chosen is None else Outcome(float(chosen == [0]), float(chosen == [1]))
        question = PairQuestion(group.task, *pair, style=self.style, rubric=rubric, repeat=repeat)
        return (await judge.ask(question)).value

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        """Strengths as what the entrants are rewarded with, where so many others without an answer get 0."""
        return strengths

    def total(self, value: float, rollout: Rollout) -> float:
        """With the paper's format part, if it has one."""
        return value

    def rewards_from(self, rollouts: Sequence[Rollout], entrants: Entrants, strengths: Rewards) -> Rewards:
        """A reward per member from a strength per entrant; a rollout without a valid answer counts 0."""
        values = self.normalised(entrants.equalised(strengths), entrants.below)
        own: dict[int, float | None] = dict(zip(entrants.members, values, strict=True))
        known = [
            own.get(number, None if rollout.status is RolloutStatus.FAILED else 0.0)
            for number, rollout in enumerate(rollouts)
        ]
        return [
            None if value is None else self.total(value, rollout)
            for rollout, value in zip(rollouts, known, strict=True)
        ]


class TournamentDesign(ComparisonDesign[S]):
    """Compares once the whole group is finished."""

    async def rewards(self, group: RolloutGroup, judge: MeteredJudge) -> Rewards:
        rollouts = await group.all_rollouts()
        entrants = self.entrants(rollouts)
        strengths: Rewards = [None] * len(entrants.members)
        if entrants.different == 1:
            strengths = [self.alone] * len(entrants.members)
        elif entrants.members:
            with suppress(Unjudgeable):
                strengths = await self.strengths(group, entrants, judge)
        return self.rewards_from(rollouts, entrants, strengths)

    @abstractmethod
    async def strengths(self, group: RolloutGroup, entrants: Entrants, judge: MeteredJudge) -> Rewards:
        """One per entrant, None for one that was never judged. Two entrants or more, not all the same."""


class Unjudgeable(Exception):
    """The design needs a rubric, and the judge could not write one."""


class RubricSource:
    """The rubric that a judge is shown: the task's own, none, or one of the query, given or written once."""

    def __init__(self, choice: Rubrics, peers: Peers | None = None) -> None:
        self._choice = choice
        self.peers = peers or Alone()
        """Those that share a step: one of them writes the rubric of a question for all."""
        self.step = 0
        """The training step: a rubric that the judge could not write is tried once a step, by one rank for all."""
        self._written: dict[str, Rubric] = {}
        self._writing: dict[str, asyncio.Future[Rubric | None]] = {}

    def most_calls(self, task: Task, own: Rubric) -> int:
        """The most judge calls that finding the rubric of a task can take."""
        return int(self._choice == "query" and self.known(task, own) is None)

    def most_criteria(self, task: Task, own: Rubric) -> int:
        """The most criteria that the rubric can have; the paper's upper limit for one not written yet."""
        known = self.known(task, own)
        return max(DIMENSIONS) if known is None else len(known.criteria)

    def keep(self, rubrics: Iterable[Rubric]) -> None:
        """Rubrics that were written before, and are not written again."""
        self._written.update((rubric.task_id, rubric) for rubric in rubrics)

    def known(self, task: Task, own: Rubric) -> Rubric | None:
        """The rubric that `find` gives without asking anybody; None where it has to be written first."""
        # One that came with a question from outside; a Challenger's task has one that knows its document.
        is_given = not task.document_id and any(each.check is None for each in own.criteria)
        if self._choice == "task" or (self._choice == "query" and is_given):
            return own
        return self._written.get(task.id)

    async def find(self, task: Task, own: Rubric, judge: MeteredJudge) -> Rubric | None:
        """None for `none`. Raises Unjudgeable where the task has none, or the judge could not write one."""
        if self._choice == "none":
            return None
        found = self.known(task, own)
        if found is None:
            # Several rollouts of one group may ask at the same time.
            if task.id not in self._writing:
                self._writing[task.id] = asyncio.ensure_future(self._write(task, judge))
            found = await self._writing[task.id]
        if found is None or not found.criteria:
            raise Unjudgeable
        return found

    async def _write(self, task: Task, judge: MeteredJudge) -> Rubric | None:
        async def write() -> Rubric | None:
            return (await judge.ask(RubricQuestion(task, ()))).value

        try:
            rubric = await self.peers.once(f"rubric/{task.id}/{self.step}", write)
        finally:
            del self._writing[task.id]
        if rubric is not None:
            self._written[task.id] = rubric
        return rubric
