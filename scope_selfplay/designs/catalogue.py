"""Settings to design."""

from collections.abc import Callable, Mapping

from scope_selfplay.config import SolverConfig
from scope_selfplay.config.rewards import (
    AnyReward,
    ArenaReward,
    BalancedReward,
    ExplicitReward,
    GroupTournamentReward,
    ImplicitReward,
    LiveReward,
    PairwiseReward,
    PointwiseReward,
    RoutingSettings,
    RubricReward,
    VerifierReward,
    WinRateReward,
)
from scope_selfplay.judge import Judge
from scope_selfplay.maths.boxed_answers import boxed_reward
from scope_selfplay.pipeline import JudgeTally
from scope_selfplay.reward_designs.design import Design, PerRolloutDesign
from scope_selfplay.reward_designs.group_tournaments import GroupTournamentDesign
from scope_selfplay.reward_designs.live import LiveDesign
from scope_selfplay.reward_designs.per_rollout import (
    ExplicitDesign,
    ImplicitDesign,
    PointwiseDesign,
    RubricDesign,
    VerifierDesign,
    Verify,
    exact_match,
)
from scope_selfplay.reward_designs.step_rewards import Rewarding
from scope_selfplay.reward_designs.tournaments import (
    ArenaDesign,
    BalancedDesign,
    PairwiseDesign,
    WinRateDesign,
)

VERIFIERS: Mapping[str, Verify] = {"exact": exact_match, "boxed": boxed_reward}
"""By the name in `solver.reward.check`."""


def open_rewarding(
    settings: SolverConfig, judge: Judge, tally: JudgeTally, count: Callable[[str], int]
) -> Rewarding:
    """What rewards the Solver's steps under these settings; `count` gives the tokens of a text."""
    routing = settings.routing
    return Rewarding(
        design=open_design(settings.reward, settings, count),
        judge=judge,
        tally=tally,
        max_missing=settings.reward.max_missing,
        base=None if routing is None else _base(routing, settings, count),
        budget=None if routing is None else routing.budget,
    )


def open_design(reward: AnyReward, solver: SolverConfig, count: Callable[[str], int]) -> Design:
    match reward:
        case RubricReward():
            return RubricDesign(solver, count)
        case VerifierReward():
            return VerifierDesign(VERIFIERS[reward.check])
        case ImplicitReward():
            return ImplicitDesign(reward)
        case ExplicitReward():
            return ExplicitDesign(reward)
        case PairwiseReward():
            return PairwiseDesign(reward)
        case PointwiseReward():
            return PointwiseDesign()
        case WinRateReward():
            return WinRateDesign(reward)
        case GroupTournamentReward():
            return GroupTournamentDesign(reward)
        case ArenaReward():
            return ArenaDesign(reward)
        case LiveReward():
            return LiveDesign(reward)
        case BalancedReward():
            return BalancedDesign(reward)


def _base(routing: RoutingSettings, solver: SolverConfig, count: Callable[[str], int]) -> PerRolloutDesign:
    return RubricDesign(solver, count) if routing.by == "rubric" else VerifierDesign(VERIFIERS[routing.check])
