"""From comparisons to strengths, and from strengths to rewards: numbers only, no judge and no text.

Reading order: `matches` (what a topology is, and rewards from strengths), `topologies`, `brackets`, `rounds`,
`circulant` (the designs), `shares` and `margins` (two ways to fit strengths), `routing` (who needs a tournament),
`driver` (plays a topology against a judge). All are pure but `driver`, which awaits the caller's judge. Sources:
Tournament-GRPO, ArenaRL, Reasoning Arena; `balanced` is ours.
"""

from scope_selfplay.ranking.brackets import double_elimination, single_elimination
from scope_selfplay.ranking.circulant import balanced_matches
from scope_selfplay.ranking.driver import (
    Compare,
    Played,
    Select,
    TopologyRun,
    planned_matches,
    play,
    play_groups,
)
from scope_selfplay.ranking.margins import balanced, fit_margins, fit_step, position_offset, score_level
from scope_selfplay.ranking.matches import (
    ComparisonGraph,
    GroupTopology,
    Match,
    Strengths,
    Topology,
    min_max,
    rank_rewards,
)
from scope_selfplay.ranking.rounds import group_tournament, swiss
from scope_selfplay.ranking.routing import (
    LiveRoute,
    informative_share,
    is_flat,
    route,
)
from scope_selfplay.ranking.shares import bradley_terry, bradley_terry_batch, logistic_share, soft_share
from scope_selfplay.ranking.topologies import AnchorScore, LiveBoard, anchor, live, round_robin
from scope_selfplay.schemas import Outcome

__all__ = [
    "AnchorScore",
    "Compare",
    "ComparisonGraph",
    "GroupTopology",
    "LiveBoard",
    "LiveRoute",
    "Match",
    "Outcome",
    "Played",
    "Select",
    "Strengths",
    "Topology",
    "TopologyRun",
    "anchor",
    "balanced",
    "balanced_matches",
    "bradley_terry",
    "bradley_terry_batch",
    "double_elimination",
    "fit_margins",
    "fit_step",
    "group_tournament",
    "informative_share",
    "is_flat",
    "live",
    "logistic_share",
    "min_max",
    "planned_matches",
    "play",
    "play_groups",
    "position_offset",
    "rank_rewards",
    "round_robin",
    "route",
    "score_level",
    "single_elimination",
    "soft_share",
    "swiss",
]
