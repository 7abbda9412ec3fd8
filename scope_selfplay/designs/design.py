"""The interface of a reward design.

    judged = await design.judge(group, desk)      # one group, while its rollouts finish
    rewards = design.settle([judged, ...])        # all groups of the step; one reward or None per rollout

A reward is None where judging failed or the rollout did, and 0 (plus the paper's format part, if it has one)
where there was no valid answer to judge.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from scope_selfplay.config.rewards import Rubrics
from scope_selfplay.judge.metered import MeteredJudge, RubricSource, Unjudgeable
from scope_selfplay.ranking import ComparisonGraph, is_flat
from scope_selfplay.reward_designs.answers import Entrants, Rewards, dealt, entrants_of, has_answer
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.schemas import Rollout, RolloutStatus, Rubric, Task

OwnReward = Callable[[int], Awaitable[float | None]]
"""The reward that a member has without any comparison, once it is finished."""


class Judged(NamedTuple):
    """What judging made of one group: a reward per member, and what they are made from where a step may refit it."""

    rewards: Rewards
    rollouts: tuple[Rollout, ...] = ()
    entrants: Entrants = Entrants((), (), ())
    graph: ComparisonGraph = ComparisonGraph()


class Design(ABC):
    """`has_anchor`: the group's first member is sampled greedily; it enters and is trained on as the others."""

    has_anchor = False

    @abstractmethod
    async def judge(self, group: RolloutGroup, desk: MeteredJudge) -> Judged: ...

    @abstractmethod
    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        """So many judge calls at most for a group with these answers, the writing of a rubric included."""

    async def judge_flat(self, group: RolloutGroup, desk: MeteredJudge, own: OwnReward) -> Judged | None:
        """The same for a group whose own rewards are flat; None for any other (Reasoning Arena, equation 5)."""
        rewards = await asyncio.gather(*(own(number) for number in range(len(group.rollouts))))
        return await self.judge(group, desk) if is_flat(rewards) else None

    def settle(self, step: Sequence[Judged]) -> list[Rewards]:
        """The rewards of all groups of a step, once all are judged. Pure."""
        return [judged.rewards for judged in step]


class PerRolloutDesign(Design):
    """Judges each rollout by itself as soon as it is finished; only such rewards can decide where a group goes."""

    async def judge(self, group: RolloutGroup, desk: MeteredJudge) -> Judged:
        numbers = range(len(group.rollouts))
        rewards = await asyncio.gather(*(self.reward(group, number, desk) for number in numbers))
        return Judged(list(rewards), tuple(await group.all_rollouts()))

    async def reward(self, group: RolloutGroup, number: int, desk: MeteredJudge) -> float | None:
        """The reward of one member, once it is finished."""
        rollout = await group.rollouts[number]
        if rollout.status is RolloutStatus.FAILED:
            return None
        try:
            value = await self.value(group, rollout, desk) if has_answer(rollout) else 0.0
        except Unjudgeable:
            return None
        return None if value is None else self.total(value, rollout)

    @abstractmethod
    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        """What a valid answer is worth; None where no verdict came."""

    def total(self, value: float, rollout: Rollout) -> float:
        """With the paper's format part, if it has one."""
        return value


class Found(NamedTuple):
    """A strength per entrant, None for one that was never judged, and the comparisons behind them."""

    strengths: Rewards
    graph: ComparisonGraph = ComparisonGraph()


class RelativeDesign(Design):
    """Judges the answers of a group against each other: strengths first, rewards from them.

    `alone` is the strength of an entrant who has nobody to meet: that of all when all are equal. `shelf` has the
    rubric that the judge is shown, if any. `in_pairs`: the judge sees two answers at a time.
    """

    alone = 0.0
    in_pairs = True

    def __init__(self, rubrics: Rubrics = "task") -> None:
        self.shelf = RubricSource(rubrics)

    @abstractmethod
    def planned_calls(self, entrants: int) -> int:
        """Judge calls for so many answers, all different."""

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        different = entrants.different
        planned = self.planned_calls(len(entrants.members)) if different > 1 else 0
        if self.in_pairs:
            # Equal answers do not meet, and a pair of texts is judged once in each order.
            planned = min(planned, different * (different - 1))
        return planned and planned + self.shelf.most_calls(task)

    @abstractmethod
    def normalised(self, strengths: Rewards) -> Rewards:
        """Strengths as what the entrants are rewarded with."""

    def total(self, value: float, rollout: Rollout) -> float:
        """With the paper's format part, if it has one."""
        return value

    def rewarded(self, rollouts: Sequence[Rollout], entrants: Entrants, found: Found) -> Judged:
        values = dealt(rollouts, entrants, self.normalised(entrants.equalised(found.strengths)))
        rewards = [
            None if value is None else self.total(value, rollout)
            for rollout, value in zip(rollouts, values, strict=True)
        ]
        return Judged(rewards, tuple(rollouts), entrants, found.graph)


class GroupDesign(RelativeDesign):
    """Compares once the whole group is finished."""

    async def judge(self, group: RolloutGroup, desk: MeteredJudge) -> Judged:
        rollouts = await group.all_rollouts()
        entrants = entrants_of(rollouts)
        found = Found([None] * len(entrants.members))
        if entrants.different == 1:
            found = Found([self.alone] * len(entrants.members))
        elif entrants.members:
            with suppress(Unjudgeable):
                found = await self.compare(group, entrants, desk)
        return self.rewarded(rollouts, entrants, found)

    @abstractmethod
    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        """Two entrants or more, not all with the same answer."""
