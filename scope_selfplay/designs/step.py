"""The rewards of a whole step: groups judged by the design, flat ones routed to it, those short of verdicts masked.

Routing (Reasoning Arena, equations 3-5): a group keeps its own rewards where they differ, and goes to the design
where they are all equal. Without a budget this is decided group by group while others are still generated; with
one, when the rewards of all groups are known, so that chance and not timing decides who is served. No step ever
makes more calls for routed groups than its budget, in however many processes it runs.
"""

import asyncio
import importlib
import pkgutil
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import scope_selfplay.designs as package
from scope_selfplay.base.values import Key, rng_from
from scope_selfplay.config.training import AnyReward, RubricReward, SolverConfig, VerifierReward
from scope_selfplay.designs.answers import Rewards
from scope_selfplay.designs.design import (
    Alone,
    JudgedGroup,
    Peers,
    PerRolloutDesign,
    RewardDesign,
    RolloutGroup,
)
from scope_selfplay.designs.per_rollout import RubricDesign, VerifierDesign
from scope_selfplay.judge.account import JudgeRecords, MeteredJudge
from scope_selfplay.ranking.matches import LiveRoute, is_flat, route
from scope_selfplay.rewards.measures import Mean, Measure, Total


def open_design(reward: AnyReward, solver: SolverConfig, count: Callable[[str], int]) -> RewardDesign[Any]:
    return design_classes()[reward.design](reward, solver, count)


@cache
def design_classes() -> Mapping[str, type[RewardDesign[Any]]]:
    """Every design in the modules of this package, by the name in its settings."""
    found: dict[str, type[RewardDesign[Any]]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, RewardDesign) and hasattr(value, "name"):
                found[value.name] = value
    return found


class Rewarder:
    """What rewards the Solver's steps. `base` is set where groups are routed: its rewards decide, `budget` bounds the
    calls for the others.
    """

    def __init__(
        self,
        settings: SolverConfig,
        judge: MeteredJudge,
        count: Callable[[str], int],
        peers: Peers | None = None,
    ) -> None:
        """`count` gives the tokens of a text; `peers` are those that share a step, by default this process alone."""
        routing = settings.routing
        self.judge, self.peers = judge, peers or Alone()
        self.design = open_design(settings.reward, settings, count)
        self.design.rubric_source.peers = self.peers
        self.base: PerRolloutDesign[Any] | None = None
        if routing is not None:
            self.base = rubric = RubricDesign(RubricReward(), settings, count)
            if routing.by != "rubric":
                self.base = verifier = VerifierDesign(VerifierReward(check=routing.check), settings, count)
                verifier.otherwise = None if routing.by == "verifier" else rubric
        self.budget = None if routing is None else routing.budget
        self._max_missing = settings.reward.max_missing

    async def judge_step(self, groups: Sequence[RolloutGroup], key: Key) -> list[JudgedGroup]:
        """All groups of a step with their rewards; `key` names its random draws. Raises what the judge raises."""
        if self.base is None:
            judged = await asyncio.gather(*(self._judge(group, self.design) for group in groups))
        elif self.budget is None:
            judged = await asyncio.gather(*(self._judge_if_flat(group, self.base) for group in groups))
        else:
            judged = await self._judge_within(self.budget, groups, self.base, key)
        return await self._settled(judged)

    async def _judge(self, group: RolloutGroup, design: RewardDesign[Any]) -> JudgedGroup:
        judge = self.judge.for_group()
        rewards = await design.rewards(group, judge)
        verified = rewards if design.verifies(group.task) else None
        return JudgedGroup(group, await group.all_rollouts(), rewards, judge.records, verified=verified)

    async def _judge_by_base(self, group: RolloutGroup, base: PerRolloutDesign[Any]) -> JudgedGroup:
        judged = await self._judge(group, base)
        return replace(judged, records=JudgeRecords(), own_records=judged.records)

    def _waits(self, judged: JudgedGroup) -> bool:
        """Whether the group is to be routed and has not been."""
        return not judged.routed and is_flat(judged.rewards) and not self._is_thin(judged.own_records)

    async def _routed(self, judged: JudgedGroup, price: int | None = None) -> JudgedGroup:
        """Keeps the group's own rewards where the price did not last: a part of the design's calls decides nothing."""
        judge = self.judge.for_group(allowance=price)
        rewards = await self.design.rewards(judged.group, judge)
        if judge.overdrawn:
            return replace(judged, records=judge.records)
        return replace(judged, records=judge.records, rewards=rewards, routed=True)

    async def _judge_if_flat(self, group: RolloutGroup, base: PerRolloutDesign[Any]) -> JudgedGroup:
        if not self.design.while_generating:
            judged = await self._judge_by_base(group, base)
            return await self._routed(judged) if self._waits(judged) else judged
        own_judge, judge = self.judge.for_group(), self.judge.for_group()
        numbers = range(len(group.rollouts))
        calls = [asyncio.ensure_future(base.reward(group, number, own_judge)) for number in numbers]
        live = LiveRoute()
        rewards = await self.design.rewards(replace(group, arrivals=_while_flat(group, calls, live)), judge)
        own, rollouts = list(await asyncio.gather(*calls)), await group.all_rollouts()
        records, verified = own_judge.records, own if base.verifies(group.task) else None
        judged = JudgedGroup(group, rollouts, own, judge.records, records, verified=verified)
        routed = live.is_flat and not self._is_thin(records)
        return replace(judged, rewards=rewards, routed=True) if routed else judged

    async def _judge_within(
        self, budget: int, groups: Sequence[RolloutGroup], base: PerRolloutDesign[Any], key: Key
    ) -> list[JudgedGroup]:
        judged = list(await asyncio.gather(*(self._judge_by_base(group, base) for group in groups)))
        rng = rng_from(*key, "route")
        asked: set[int] = set()
        while True:
            waiting = [
                group.rewards if number not in asked and self._waits(group) else []
                for number, group in enumerate(judged)
            ]
            prices = [
                self.design.most_calls(group.task, group.rubric, self.design.entrants(finished.rollouts))
                for group, finished in zip(groups, judged, strict=True)
            ]
            served = await self._served(waiting, prices, rng, budget)
            if served is None:
                return [replace(group, left_out=self._waits(group)) for group in judged]
            asked.update(served)
            calls = [self._routed(judged[number], prices[number]) for number in served]
            for number, group in zip(served, await asyncio.gather(*calls), strict=True):
                judged[number] = group
            # Prices are upper limits: what is left over goes to others.
            spent = sum(judged[number].records.calls for number in served)
            budget -= sum(await self.peers.gather("spent", spent))

    async def _served(
        self, waiting: Sequence[Rewards], prices: Sequence[int], rng: random.Random, budget: int
    ) -> list[int] | None:
        """The groups of this process that the budget of the whole step pays for now; None where it pays for none."""
        everyone = await self.peers.gather("routes", (list(waiting), list(prices)))
        routed = route(
            [rewards for rewards_of_all, _ in everyone for rewards in rewards_of_all],
            [price for _, prices_of_all in everyone for price in prices_of_all],
            rng,
            budget=budget,
        )
        if not any(routed):
            return None
        before = sum(len(rewards_of_all) for rewards_of_all, _ in everyone[: self.peers.number])
        return [number for number in range(len(waiting)) if routed[before + number]]

    async def _settled(self, judged: Sequence[JudgedGroup]) -> list[JudgedGroup]:
        """Refitted over the whole step where the design does that, and masked where too much is missing."""
        by_design = [group for group in judged if group.by_design]
        evidence: list[list[Any]] = []
        if self.design.pools:
            evidence = await self.peers.gather("evidence", self.design.evidence(by_design))
        of_step = [each for of_process in evidence for each in of_process]
        refitted = iter(self.design.refit(by_design, of_step))
        settled = []
        for group in judged:
            rewards = next(refitted) if group.by_design else group.rewards
            if self._is_thin(group.records if group.by_design else group.own_records):
                rewards = [None] * len(rewards)
            settled.append(replace(group, rewards=rewards))
        return settled

    def _is_thin(self, records: JudgeRecords | None) -> bool:
        """Whether so many judgements of a group are missing that all of it is masked."""
        return records is not None and records.missing / max(1, records.calls) > self._max_missing


async def _while_flat(
    group: RolloutGroup, own: Sequence["asyncio.Future[float | None]"], live: LiveRoute
) -> AsyncIterator[int]:
    """The members that arrive in a group while its own rewards are flat (Reasoning Arena, equation 5).

    None before the second reward that equals the first, and none after the first that differs.
    """

    async def rewarded(number: int) -> tuple[int, float | None]:
        return number, await own[number]

    if group.in_order:
        async for number in group.arrivals:
            for member in live.arrive(*await rewarded(number)):
                yield member
        return
    for known in asyncio.as_completed(map(rewarded, range(len(own)))):
        for member in live.arrive(*await known):
            yield member


def records_of(judged: Sequence[JudgedGroup]) -> list[JudgeRecords]:
    """The judge records of a step, group by group, those of a group's own rewards first."""
    both = [records for group in judged for records in (group.own_records, group.records)]
    return [records for records in both if records is not None]


def reward_metrics(judged: Sequence[JudgedGroup]) -> dict[str, Measure]:
    """The metrics of a step's rewards: about its judge and its groups."""
    records = records_of(judged)
    calls = sum(each.calls for each in records)
    return {
        "generations": Total(sum(len(group.rollouts) for group in judged)),
        **_verified_metrics([group.verified for group in judged if group.verified is not None]),
        "judge_calls": Total(calls),
        "judge_missing": Mean(sum(each.missing for each in records), calls, over_nothing=0.0),
        # Nobody asks the judge about entrants that are all the same.
        "routed": Mean.of(group.routed and group.records.calls > 0 for group in judged),
        "left_out": Mean.of(group.left_out for group in judged),
        "stand_in_anchor": Mean(sum(each.stand_in_anchor for each in records), len(judged)),
        "masked": Mean.of(reward is None for group in judged for reward in group.rewards),
    }


def _verified_metrics(verified: Sequence[Rewards]) -> dict[str, Measure]:
    """What the verifier says, routed groups included (Reasoning Arena, figure 1); nothing where it was not asked."""
    if not verified:
        return {}
    known = [[reward for reward in group if reward is not None] for group in verified]
    return {
        "verified": Mean.of(reward for group in known for reward in group),
        "all_right": Mean.of(bool(group) and min(group) == 1.0 for group in known),
        "all_wrong": Mean.of(bool(group) and max(group) == 0.0 for group in known),
    }
