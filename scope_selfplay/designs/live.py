"""`live`: a finished rollout meets the best, the worst and the median of those before it (Reasoning Arena).

Comparisons run while other rollouts of the group are still being generated. With routing nothing is compared until
a second rollout has the same reward as the first, and nobody joins any more after the first that differs.
"""

import asyncio

from scope_selfplay.config.rewards import LiveReward
from scope_selfplay.judge import Style
from scope_selfplay.judge.fences import plain_text
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.ranking import LiveBoard, LiveRoute, Match, Outcome, min_max
from scope_selfplay.reward_designs.answers import Rewards, entrants_of
from scope_selfplay.reward_designs.design import Found, Judged, OwnReward, RelativeDesign
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.schemas import Rollout

_OPPONENTS = 3


class LiveDesign(RelativeDesign):
    """Soft outcomes, a Bradley-Terry fit, min-max (Reasoning Arena, section 4, equations 7 and 10)."""

    def __init__(self, settings: LiveReward) -> None:
        super().__init__()
        self._gamma = settings.gamma

    async def judge(self, group: RolloutGroup, desk: MeteredJudge) -> Judged:
        table = _Table(group, desk, self._gamma)
        await table.fill(None)
        return await self._judged(group, table)

    async def judge_flat(self, group: RolloutGroup, desk: MeteredJudge, own: OwnReward) -> Judged | None:
        table = _Table(group, desk, self._gamma)
        await table.fill(own)
        return await self._judged(group, table) if table.route.is_flat else None

    def normalised(self, strengths: Rewards) -> Rewards:
        return min_max(strengths)

    def planned_calls(self, entrants: int) -> int:
        return sum(min(earlier, _OPPONENTS) for earlier in range(entrants))

    async def _judged(self, group: RolloutGroup, table: "_Table") -> Judged:
        rollouts = await group.all_rollouts()
        entrants = entrants_of(rollouts)
        if len(entrants.members) == 1:
            return self.rewarded(rollouts, entrants, Found([self.alone]))
        strengths = table.board.strengths()
        known = [strengths[member] if member < len(strengths) else None for member in entrants.members]
        return self.rewarded(rollouts, entrants, Found(known))


class _Table:
    """One group's board and who sits at it; entrants are the group's member numbers."""

    def __init__(self, group: RolloutGroup, desk: MeteredJudge, gamma: float) -> None:
        self.board = LiveBoard(gamma=gamma)
        self.route = LiveRoute()
        self._group = group
        self._desk = desk
        self._asked: dict[tuple[str, str], asyncio.Future[Outcome | None]] = {}

    async def fill(self, own: OwnReward | None) -> None:
        """Lets everybody come who arrives; by their own rewards, if given, only where these are flat."""
        if self._group.arrivals.deterministic:
            # Whom a newcomer meets follows from the verdicts before it: they must be there whatever the timing.
            async for number in self._group.arrivals:
                await self._arrive(number, own)
            return
        arriving = [asyncio.ensure_future(self._arrive(number, own)) async for number in self._group.arrivals]
        await asyncio.gather(*arriving)

    async def _arrive(self, number: int, own: OwnReward | None) -> None:
        joining = [number] if own is None else self.route.arrive(number, await own(number))
        for member in joining:
            rollout = await self._group.rollouts[member]
            if entrants_of([rollout]).members:
                await asyncio.gather(*(self._meet(match) for match in self.board.join(member)))

    async def _meet(self, match: Match) -> None:
        first, second = [await self._group.rollouts[number] for number in match]
        self.board.record(match, await self._outcome(first, second))

    async def _outcome(self, first: Rollout, second: Rollout) -> Outcome | None:
        """Equal answers tie without a call; an ordered pair of answers is judged once, a failure included."""
        texts = (plain_text(first.answer or ""), plain_text(second.answer or ""))
        if texts[0] == texts[1]:
            return Outcome(0.5, 0.5)
        if texts not in self._asked:
            asking = self._desk.compare(
                self._group.task, (first, second), Style.PREFERENCE, self._group.rubric
            )
            self._asked[texts] = asyncio.ensure_future(asking)
        return await self._asked[texts]
