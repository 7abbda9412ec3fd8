"""The rewards of a whole step: every group judged by a design, flat groups routed to it, thin ones masked.

Routing (Reasoning Arena, equations 3-5): a group keeps its own rewards where they differ, and goes to the design
where they are all equal. Without a budget this is decided group by group while others are still generated; with
one, when the rewards of all groups are known, so that chance and not timing decides who is served. No step ever
makes more calls for routed groups than its budget.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scope_selfplay.judge import Judge
from scope_selfplay.judge.metered import JudgeRecords, MeteredJudge
from scope_selfplay.pipeline import JudgeTally
from scope_selfplay.ranking import informative_share, is_flat, route
from scope_selfplay.reward_designs.answers import Entrants, Rewards, entrants_of
from scope_selfplay.reward_designs.design import Design, Judged, PerRolloutDesign
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.rewards import group_advantages
from scope_selfplay.schemas import Key, rng_from


class StepRewards(NamedTuple):
    """One list of rewards per group, the books of everything asked for them, and the step's numbers."""

    rewards: list[Rewards]
    books: list[JudgeRecords]
    metrics: dict[str, float | None]


class _Opened(NamedTuple):
    """A group with a desk for its own rewards and one for its tournament, and what both came to."""

    own_desk: MeteredJudge
    desk: MeteredJudge
    own: Rewards
    judged: Judged | None


class _Candidate(NamedTuple):
    """A group whose own rewards are known."""

    group: RolloutGroup
    desk: MeteredJudge
    own: Rewards
    entrants: Entrants


@dataclass(frozen=True)
class Rewarding:
    """`base` is set where groups are routed: its rewards decide, `budget` bounds the calls for the others.

    `max_missing` is the share of a group's judgements that may be missing before all of it is masked.
    """

    design: Design
    judge: Judge
    tally: JudgeTally
    max_missing: float
    base: PerRolloutDesign | None = None
    budget: int | None = None

    async def step(self, groups: Sequence[RolloutGroup], key: Key) -> StepRewards:
        """Rewards for all groups of a step; `key` names its random draws. Raises what the judge raises."""
        if self.base is None:
            opened = await asyncio.gather(*(self._judge(group) for group in groups))
        elif self.budget is None:
            opened = await asyncio.gather(*(self._judge_if_flat(group, self.base) for group in groups))
        else:
            opened = await self._judge_within(self.budget, groups, self.base, key)
        rewards = self._settled(opened)
        books = [desk.books for each in opened for desk in (each.own_desk, each.desk)]
        routed = [each.judged is not None for each in opened] if self.base is not None else []
        left_out = [self._is_left_out(each) for each in opened] if self.budget is not None else []
        return StepRewards(rewards, books, _metrics(rewards, books, routed, left_out))

    async def _judge(self, group: RolloutGroup) -> _Opened:
        desk = self._desk()
        return _Opened(self._desk(), desk, [], await self.design.judge(group, desk))

    async def _judge_if_flat(self, group: RolloutGroup, base: PerRolloutDesign) -> _Opened:
        own_desk, desk = self._desk(), self._desk()
        calls = [
            asyncio.ensure_future(base.reward(group, number, own_desk))
            for number in range(len(group.rollouts))
        ]
        judged = await self.design.judge_flat(group, desk, lambda number: calls[number])
        own = list(await asyncio.gather(*calls))
        return _Opened(own_desk, desk, own, None if self._is_thin(own_desk) else judged)

    async def _judge_within(
        self, budget: int, groups: Sequence[RolloutGroup], base: PerRolloutDesign, key: Key
    ) -> list[_Opened]:
        candidates = await asyncio.gather(*(self._candidate(group, base) for group in groups))
        opened = [_Opened(each.desk, self._desk(), each.own, None) for each in candidates]
        waiting: list[Rewards] = [[] if self._is_thin(each.desk) else each.own for each in candidates]
        rng = rng_from(*key, "route")
        while True:
            prices = [self._price(each) for each in candidates]
            routed = route(waiting, prices, rng, budget=budget).routed
            if not any(routed):
                return opened
            served = [number for number, goes in enumerate(routed) if goes]
            calls = [self._judge_for(prices[number], candidates[number]) for number in served]
            for number, found in zip(served, await asyncio.gather(*calls), strict=True):
                opened[number], waiting[number] = found, []
                # Prices are upper limits: what is left over goes to others.
                budget -= found.desk.books.calls

    async def _candidate(self, group: RolloutGroup, base: PerRolloutDesign) -> _Candidate:
        desk = self._desk()
        judged = await base.judge(group, desk)
        return _Candidate(group, desk, judged.rewards, entrants_of(judged.rollouts))

    def _price(self, candidate: _Candidate) -> int:
        return self.design.most_calls(candidate.group.task, candidate.group.rubric, candidate.entrants)

    async def _judge_for(self, price: int, candidate: _Candidate) -> _Opened:
        """Without rewards by the design where the price did not last, since a part of its calls decides nothing."""
        desk = MeteredJudge(self.judge, self.tally, allowance=price)
        judged = await self.design.judge(candidate.group, desk)
        return _Opened(candidate.desk, desk, candidate.own, None if desk.overdrawn else judged)

    def _is_left_out(self, opened: _Opened) -> bool:
        return opened.judged is None and is_flat(opened.own) and not self._is_thin(opened.own_desk)

    def _settled(self, opened: Sequence[_Opened]) -> list[Rewards]:
        played = [each.judged for each in opened if each.judged is not None]
        settled = iter(self.design.settle(played))
        rewards: list[Rewards] = []
        for each in opened:
            found = each.own if each.judged is None else next(settled)
            thin = self._is_thin(each.own_desk if each.judged is None else each.desk)
            rewards.append([None] * len(found) if thin else found)
        return rewards

    def _is_thin(self, desk: MeteredJudge) -> bool:
        return desk.books.missing_share > self.max_missing

    def _desk(self) -> MeteredJudge:
        return MeteredJudge(self.judge, self.tally)


def _metrics(
    rewards: Sequence[Rewards],
    books: Sequence[JudgeRecords],
    routed: Sequence[bool],
    left_out: Sequence[bool],
) -> dict[str, float | None]:
    advantages = [group_advantages(each) for each in rewards]
    calls, missing = sum(each.calls for each in books), sum(each.missing for each in books)
    members = [reward for each in rewards for reward in each]
    return {
        "judge_calls": float(calls),
        "judge_missing": missing / calls if calls else 0.0,
        "routed": sum(routed) / len(routed) if routed else 0.0,
        "left_out": sum(left_out) / len(left_out) if left_out else 0.0,
        "stand_in_anchor": sum(each.stand_in_anchor for each in books) / len(rewards) if rewards else 0.0,
        "non_zero_advantage": informative_share(advantages),
        "zero_variance": sum(not any(each) for each in advantages) / len(advantages) if advantages else 0.0,
        "masked": sum(reward is None for reward in members) / len(members) if members else 0.0,
    }
