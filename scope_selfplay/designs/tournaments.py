"""Designs that compare a finished group: `pairwise`, `win_rate`, `arena`, `balanced`, `group_tournament`."""

import asyncio
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

from scope_selfplay.base.values import Key, Outcome, Rollout, Rubric, Task, rng_from
from scope_selfplay.config.training import (
    ArenaReward,
    BalancedReward,
    GroupTournamentReward,
    LiveReward,
    PairwiseReward,
    WinRateReward,
)
from scope_selfplay.designs.answers import Entrants, Rewards, whole_structure
from scope_selfplay.designs.design import ComparisonDesign, JudgedGroup, RolloutGroup, S, TournamentDesign
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import SelectQuestion, Style
from scope_selfplay.ranking.balanced import balanced, fit_step
from scope_selfplay.ranking.driver import planned_matches, play, play_groups
from scope_selfplay.ranking.matches import (
    GAMMA,
    ComparisonGraph,
    GroupTopology,
    Match,
    Topology,
    min_max,
    rank_rewards,
)
from scope_selfplay.ranking.topologies import (
    LiveLeaderboard,
    anchor,
    double_elimination,
    group_tournament,
    round_robin,
    single_elimination,
    swiss,
)
from scope_selfplay.rewards.equations import pairwise_reward

_OPPONENTS = 3


class LiveDesign(ComparisonDesign[LiveReward]):
    """Soft outcomes, a Bradley-Terry fit, min-max (Reasoning Arena, section 4, equations 7 and 10)."""

    name = "live"
    while_generating = True
    style = Style.PREFERENCE

    async def rewards(self, group: RolloutGroup, judge: MeteredJudge) -> Rewards:
        board = LiveLeaderboard()
        identities: dict[int, str] = {}
        verdicts: dict[tuple[str, str], asyncio.Future[Outcome | None]] = {}

        async def compare(match: Match) -> Outcome | None:
            pair = [self.as_judged(await group.rollouts[member]) for member in match]
            return await self.compare(group, pair, judge, group.rubric)

        async def meet(match: Match) -> None:
            """Equals tie without a call; a pair is judged once in each order, a failure included."""
            shown = identities[match.first], identities[match.second]
            if shown[0] == shown[1]:
                board.record(match, Outcome(0.5, 0.5))
                return
            if shown not in verdicts:
                verdicts[shown] = asyncio.ensure_future(compare(match))
            board.record(match, await verdicts[shown])

        async def join(member: int) -> None:
            entrants = self.entrants([await group.rollouts[member]])
            if entrants.members:
                (identities[member],) = entrants.identities
                await asyncio.gather(*map(meet, board.join(member)))

        joining: list[asyncio.Future[None]] = []
        async for member in group.arrivals:
            joining.append(asyncio.ensure_future(join(member)))
            if group.in_order:
                # A newcomer's opponents follow from the earlier verdicts, so these must be in, whatever the timing.
                await joining[-1]
        await asyncio.gather(*joining)
        rollouts = await group.all_rollouts()
        entrants = self.entrants(rollouts)
        if len(entrants.members) == 1:
            return self.rewards_from(rollouts, entrants, [self.alone])
        strengths = board.strengths()
        known = [strengths[member] if member < len(strengths) else None for member in entrants.members]
        return self.rewards_from(rollouts, entrants, known)

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        return min_max(strengths, below=below)

    def planned_calls(self, entrants: int) -> int:
        return sum(min(earlier, _OPPONENTS) for earlier in range(entrants))


class MatchDesign(TournamentDesign[S]):
    """Plays a topology of matches, each of which is one comparison in the design's style."""

    @abstractmethod
    def topology(self, n: int, key: Key) -> Topology: ...

    async def strengths(self, group: RolloutGroup, entrants: Entrants, judge: MeteredJudge) -> Rewards:
        asked = Counter[tuple[str, str]]()
        rubric: Rubric | None = group.rubric
        if self.style is not Style.PREFERENCE:
            # The prompt of a preference shows no rubric, so that none has to be found.
            rubric = await self.rubric_source.find(group.task, group.rubric, judge)

        async def compare(match: Match) -> Outcome | None:
            pair = entrants.identities[match.first], entrants.identities[match.second]
            repeat, asked[pair] = asked[pair], asked[pair] + 1
            shown = [entrants.rollouts[number] for number in match]
            return await self.compare(group, shown, judge, rubric, repeat=repeat)

        played = await play(
            self.topology(len(entrants.members), group.key),
            compare,
            both_orders=getattr(self.settings, "both_orders", False),
            rematches=getattr(self.settings, "reset", False),
            identity=entrants.identities,
        )
        judge.records.graph = played.graph
        return played.strengths


class PairwiseDesign(MatchDesign[PairwiseReward]):
    """Every pair is shown once and one of the two is picked; share of won pairs (Tournament-GRPO, equation 15)."""

    name = "pairwise"
    alone = 0.5

    def topology(self, n: int, key: Key) -> Topology:
        return round_robin(n)

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        return _with_sure_wins(strengths, below, win=1.0)

    def total(self, value: float, rollout: Rollout) -> float:
        return pairwise_reward(value, whole_structure(rollout))


class WinRateDesign(MatchDesign[WinRateReward]):
    """The mean soft outcome of a round robin (Reasoning Arena, equations 7-8)."""

    name = "win_rate"
    alone = 0.5
    style = Style.PREFERENCE

    def topology(self, n: int, key: Key) -> Topology:
        return round_robin(n, gamma=GAMMA)

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        return _with_sure_wins(strengths, below, win=GAMMA)


class ArenaDesign(MatchDesign[ArenaReward]):
    """A tournament of trajectories, each scored beside another; rewards by rank (ArenaRL, section 4).

    The anchor is the greedy rollout, the first of its group. Where that has no answer, and so meets nobody, the
    first sampled rollout that has one replaces it, which the records note: sampled rollouts are exchangeable before
    they are judged, so that this favours none of them, but it is a noisier anchor than the paper's.
    """

    name = "arena"

    @property
    def style(self) -> Style:
        return Style.SCORES if self.settings.results else Style.CORE_SCORES

    @property
    def has_anchor(self) -> bool:
        return self.settings.has_anchor

    @property
    def in_pairs(self) -> bool:
        # A pair that meets again is then judged again.
        return not self.settings.reset

    async def strengths(self, group: RolloutGroup, entrants: Entrants, judge: MeteredJudge) -> Rewards:
        strengths = await super().strengths(group, entrants, judge)
        judge.records.stand_in_anchor = self.has_anchor and entrants.members[0] != 0
        return strengths

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        return rank_rewards(strengths, below=below)

    def planned_calls(self, entrants: int) -> int:
        # Whether the final is played again depends on the outcomes.
        plan = self._topology(entrants, (), reset=False)
        matches = planned_matches(plan, lambda match: Outcome(1.0, 0.0)) + self.settings.reset
        return matches * (2 if self.settings.both_orders else 1)

    def topology(self, n: int, key: Key) -> Topology:
        return self._topology(n, key, reset=self.settings.reset)

    def _topology(self, n: int, key: Key, *, reset: bool) -> Topology:
        settings, rng = self.settings, rng_from(*key, "arena")
        match settings.topology:
            case "round_robin":
                return round_robin(n)
            case "anchor":
                return anchor(n, score=settings.score)
            case "single_elimination":
                return single_elimination(n, score=settings.score)
            case "double_elimination":
                return double_elimination(n, rng, score=settings.score, reset=reset)
            case "swiss":
                return swiss(n, rng)


class BalancedDesign(MatchDesign[BalancedReward]):
    """Evenly spread pairs in one wave; strengths by least squares over the scores, min-max.

    What being shown first is worth, and how far scores compare from call to call, depend on the judge, not on a
    group: `refit` estimates both over the whole step and fits every group again with them. Margins always count
    in full; the sums of a call's scores count from nothing, for a judge without a steady scale, up to as much.
    """

    name = "balanced"
    style = Style.SCORES
    pools = True

    def topology(self, n: int, key: Key) -> Topology:
        return balanced(n, self.planned_calls(n), rng_from(*key, "balanced"))

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        return min_max(strengths, below=below)

    def evidence(self, judged: Sequence[JudgedGroup]) -> list[ComparisonGraph]:
        # Equals are one entrant here: a tie without a call, or a verdict that is used twice, says nothing
        # about the judge.
        return [group.records.graph.merged(self.entrants(group.rollouts).identities) for group in judged]

    def refit(self, judged: Sequence[JudgedGroup], of_step: Sequence[ComparisonGraph]) -> list[Rewards]:
        entered, graphs = [self.entrants(group.rollouts) for group in judged], self.evidence(judged)
        fits = fit_step([entrants.different for entrants in entered], graphs, effects_of=of_step)
        refitted = []
        for group, entrants, graph, fit in zip(judged, entered, graphs, fits, strict=True):
            if not graph.matches:
                refitted.append(group.rewards)
                continue
            fitted = dict(zip(dict.fromkeys(entrants.identities), fit, strict=True))
            strengths = [fitted[who] for who in entrants.identities]
            refitted.append(self.rewards_from(group.rollouts, entrants, strengths))
        return refitted

    def planned_calls(self, entrants: int) -> int:
        """At least as many as connect all, at most every pair in both orders."""
        wanted = round(entrants * self.settings.meetings / 2)
        return min(max(wanted, entrants - 1), entrants * (entrants - 1))


class GroupTournamentDesign(TournamentDesign[GroupTournamentReward]):
    """Repeated rounds in which the judge picks the winners of small groups: points for every won group over all
    repeats, min-max, plus the format (Tournament-GRPO, Algorithm 1, equations 8-9).

    Every repeat shuffles anew and is judged anew. Rollouts without an answer are drawn as all others are, and lose
    without a call; so a group is only asked about where more have an answer than can win.
    """

    name = "group_tournament"
    alone = 1.0

    async def strengths(self, group: RolloutGroup, entrants: Entrants, judge: MeteredJudge) -> Rewards:
        members = len(entrants.members)
        if members + entrants.below <= self.settings.final:
            # Nothing to decide: nobody has points, as in Algorithm 1, and nobody was left unjudged by a fault.
            return [0.0] * members
        rubric = None
        if members > self.settings.winners:
            rubric = await self.rubric_source.find(group.task, group.rubric, judge)

        async def play_repeat(repeat: int) -> Rewards:
            async def select(shown: list[int]) -> list[int] | None:
                candidates = [entrants.rollouts[number] for number in shown]
                question = SelectQuestion(
                    group.task, rubric, candidates, self.settings.winners, repeat=repeat
                )
                chosen = (await judge.ask(question)).value
                return None if chosen is None else [shown[place] for place in chosen]

            topology = self._repeat(
                members + entrants.below, rng_from(*group.key, "groups", repeat), entrants.below
            )
            names = [*entrants.identities, *[""] * entrants.below]
            return (await play_groups(topology, select, identity=names))[:members]

        points = await asyncio.gather(*map(play_repeat, range(self.settings.repeats)))
        return [_sum_of_known(own) for own in zip(*points, strict=True)]

    def normalised(self, strengths: Rewards, below: int) -> Rewards:
        # Those without an answer have no points in equation 8.
        return min_max([*strengths, *[0.0] * min(below, 1)])[: len(strengths)]

    def total(self, value: float, rollout: Rollout) -> float:
        return value + whole_structure(rollout)

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        if entrants.different < 2 or len(entrants.members) <= self.settings.winners:
            return 0
        written = self.rubric_source.most_calls(task, rubric)
        return written + self.planned_calls(len(entrants.members) + entrants.below)

    def planned_calls(self, entrants: int) -> int:
        one = self._repeat(entrants, random.Random(0), below=0)
        return self.settings.repeats * planned_matches(one, lambda members: members[: self.settings.winners])

    def _repeat(self, n: int, rng: random.Random, below: int) -> GroupTopology:
        settings = self.settings
        return group_tournament(
            n,
            rng,
            group_size=settings.group_size,
            winners=settings.winners,
            final=settings.final,
            repeats=1,
            below=below,
        )


def _sum_of_known(points: Sequence[float | None]) -> float | None:
    known = [each for each in points if each is not None]
    return sum(known) if known else None


def _with_sure_wins(shares: Rewards, below: int, *, win: float) -> Rewards:
    """Mean shares over the other entrants as mean shares over those and the ones below, beaten without a call."""
    others = len(shares) - 1
    return [
        None if share is None else (share * others + win * below) / max(others + below, 1) if below else share
        for share in shares
    ]
