"""Designs of matches between two: `pairwise`, `win_rate`, `arena`, `balanced`."""

from collections.abc import Sequence

from scope_selfplay.config.rewards import ArenaReward, BalancedReward, PairwiseReward, WinRateReward
from scope_selfplay.judge import Style
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.ranking import (
    Compare,
    Match,
    Outcome,
    Strengths,
    Topology,
    anchor,
    balanced,
    double_elimination,
    fit_step,
    min_max,
    play,
    rank_rewards,
    round_robin,
    single_elimination,
    swiss,
)
from scope_selfplay.reward_designs.answers import Entrants, Rewards, whole_structure
from scope_selfplay.reward_designs.design import Found, GroupDesign, Judged
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.schemas import Rollout, Rubric, rng_from


class PairwiseDesign(GroupDesign):
    """Every pair is shown once and one of the two is picked; share of won pairs (Tournament-GRPO, equation 15)."""

    alone = 0.5

    def __init__(self, settings: PairwiseReward) -> None:
        super().__init__(settings.rubrics)

    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        rubric = await self.shelf.find(group.task, group.rubric, desk)

        async def pick(match: Match) -> Outcome | None:
            pair = [entrants.rollouts[number] for number in match]
            chosen = await desk.select(group.task, rubric, pair, 1)
            return None if chosen is None else Outcome(float(chosen == [0]), float(chosen == [1]))

        played = await play(round_robin(len(entrants.members)), pick, identity=entrants.says)
        return Found(played.strengths, played.graph)

    def normalised(self, strengths: Rewards) -> Rewards:
        return strengths

    def total(self, value: float, rollout: Rollout) -> float:
        return value + whole_structure(rollout)

    def planned_calls(self, entrants: int) -> int:
        return entrants * (entrants - 1) // 2


class WinRateDesign(GroupDesign):
    """The mean soft outcome of a round robin (Reasoning Arena, equations 7-8)."""

    alone = 0.5

    def __init__(self, settings: WinRateReward) -> None:
        super().__init__()
        self._gamma = settings.gamma

    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        topology = round_robin(len(entrants.members), gamma=self._gamma)
        judged_by = _judging(group, entrants, desk, Style.PREFERENCE, group.rubric)
        played = await play(topology, judged_by, identity=entrants.says)
        return Found(played.strengths, played.graph)

    def normalised(self, strengths: Rewards) -> Rewards:
        return strengths

    def planned_calls(self, entrants: int) -> int:
        return entrants * (entrants - 1) // 2


class ArenaDesign(GroupDesign):
    """A tournament of trajectories, each scored beside another; rewards by rank (ArenaRL, section 4).

    The anchor is the greedy rollout, the first of its group. Where that has no answer, and so meets nobody, the
    first sampled rollout that has one stands in for it, which the books note: sampled rollouts are alike before
    they are judged, so that this favours none of them, but it is a noisier anchor than the paper's.
    """

    def __init__(self, settings: ArenaReward) -> None:
        self._settings = settings
        super().__init__(settings.rubrics)
        self.has_anchor = settings.topology in ("anchor", "single_elimination")

    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        rubric = await self.shelf.find(group.task, group.rubric, desk)
        desk.books.stand_in_anchor = self.has_anchor and entrants.members[0] != 0
        played = await play(
            self._topology(len(entrants.members), group.key),
            _judging(group, entrants, desk, Style.SCORES, rubric),
            both_orders=self._settings.both_orders,
            identity=entrants.says,
        )
        return Found(played.strengths, played.graph)

    def normalised(self, strengths: Rewards) -> Rewards:
        return rank_rewards(strengths)

    def planned_calls(self, entrants: int) -> int:
        return _matches(self._topology(entrants, ())) * (2 if self._settings.both_orders else 1)

    def _topology(self, n: int, key: tuple[str | int, ...]) -> Topology:
        settings, rng = self._settings, rng_from(*key, "arena")
        match settings.topology:
            case "round_robin":
                return round_robin(n)
            case "anchor":
                return anchor(n, anchor_score=settings.anchor_score, score=settings.score)
            case "single_elimination":
                return single_elimination(n, score=settings.score)
            case "double_elimination":
                return double_elimination(n, rng, score=settings.score)
            case "swiss":
                return swiss(n, rng)


class BalancedDesign(GroupDesign):
    """Evenly spread pairs in one wave; strengths by least squares over the scores, min-max.

    What being shown first is worth, and how far scores compare from call to call, are matters of the judge, not of
    a group: `settle` estimates both over the whole step and fits every group again with them. Margins are always
    used; the sums of a call's scores weigh from nothing, for a judge without a steady scale, up to as much.
    """

    def __init__(self, settings: BalancedReward) -> None:
        self._meetings = settings.meetings
        super().__init__(settings.rubrics)

    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        rubric = await self.shelf.find(group.task, group.rubric, desk)
        n = len(entrants.members)
        topology = balanced(n, self.planned_calls(n), rng_from(*group.key, "balanced"))
        judged_by = _judging(group, entrants, desk, Style.SCORES, rubric)
        played = await play(topology, judged_by, identity=entrants.says)
        return Found(played.strengths, played.graph)

    def normalised(self, strengths: Rewards) -> Rewards:
        return min_max(strengths)

    def settle(self, step: Sequence[Judged]) -> list[Rewards]:
        # Equal answers are one entrant here: a tie that no call gave, or a verdict that is there twice, tells
        # nothing about the judge.
        graphs = [judged.graph.merged(judged.entrants.says) for judged in step]
        fits = fit_step([len(set(judged.entrants.says)) for judged in step], graphs)
        return [
            self._refitted(judged, fit) if graph.matches else judged.rewards
            for judged, graph, fit in zip(step, graphs, fits, strict=True)
        ]

    def planned_calls(self, entrants: int) -> int:
        """At least as many as connect all, at most every pair in both orders."""
        wanted = round(entrants * self._meetings / 2)
        return min(max(wanted, entrants - 1), entrants * (entrants - 1))

    def _refitted(self, judged: Judged, fit: Strengths) -> Rewards:
        """`fit` is by different answer."""
        entrants = judged.entrants
        by_answer = dict(zip(dict.fromkeys(entrants.says), fit, strict=True))
        found = Found([by_answer[answer] for answer in entrants.says])
        return self.rewarded(judged.rollouts, entrants, found).rewards


def _judging(
    group: RolloutGroup, entrants: Entrants, desk: MeteredJudge, style: Style, rubric: Rubric | None
) -> Compare:
    async def compare(match: Match) -> Outcome | None:
        pair = (entrants.rollouts[match.first], entrants.rollouts[match.second])
        return await desk.compare(group.task, pair, style, rubric)

    return compare


def _matches(topology: Topology) -> int:
    """How many matches a topology asks for; in none of them does it depend on the outcomes."""
    count = 0
    try:
        wave = next(topology)
        while True:
            count += len(wave)
            wave = topology.send([Outcome(1.0, 0.0)] * len(wave))
    except StopIteration:
        return count
