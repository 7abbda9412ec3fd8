"""The designs of one wave: everybody against everybody, and everybody against an anchor."""

from typing import Literal

from scope_selfplay.ranking.matches import (
    Match,
    MatchScores,
    Score,
    Topology,
    all_pairs,
    counterbalanced,
)
from scope_selfplay.ranking.shares import soft_share

AnchorScore = Literal["zero", "mean"]


def round_robin(n: int, *, gamma: float = 1.0) -> Topology:
    """Every pair meets once; a strength is the mean share over the judged matches, in [1 - gamma, gamma].

    `gamma=1` is the win rate of ArenaRL equation 4 (a tie counts half), a smaller gamma the soft win rate of
    Reasoning Arena equation 8. Waves: one, of n(n-1)/2 matches, in a counterbalanced order.
    """
    matches = counterbalanced(all_pairs(n))
    outcomes = yield matches
    shares: list[list[float]] = [[] for _ in range(n)]
    for match, outcome in zip(matches, outcomes, strict=True):
        if outcome is not None:
            share = soft_share(outcome, gamma)
            shares[match.first].append(share)
            shares[match.second].append(1 - share)
    return [sum(own) / len(own) if own else None for own in shares]


def anchor(
    n: int, *, anchor: int = 0, anchor_score: AnchorScore = "zero", score: Score = "margin"
) -> Topology:
    """Every entrant meets the anchor, the greedy rollout (ArenaRL section 4.2); a strength is its margin.

    The anchor's own strength is 0, on the scale of the margins. `anchor_score="mean"` is the paper's
    rule, the mean of its own results, which misplaces an anchor that is far from the middle of the
    group. `score="own"` ranks by own scores as the paper does; the anchor then always has its mean.
    Waves: one, of n-1 matches, the anchor first in all of them, so that position bias is the same for
    all others. Raises ValueError without such an anchor.
    """
    return (yield from meet_anchor(n, anchor, MatchScores(score), anchor_score))


def meet_anchor(n: int, anchor: int, ledger: MatchScores, anchor_score: AnchorScore = "zero") -> Topology:
    """The wave of `anchor`, booked in the caller's empty ledger."""
    if not 0 <= anchor < n:
        raise ValueError(f"anchor {anchor} is no entrant; with {n} entrants it is a number from 0 to {n - 1}")
    matches = [Match(anchor, entrant) for entrant in range(n) if entrant != anchor]
    for match, outcome in zip(matches, (yield matches), strict=True):
        ledger.record(match, outcome)
    strengths = [ledger.mean(entrant) for entrant in range(n)]
    if anchor_score == "zero" and ledger.score == "margin" and strengths[anchor] is not None:
        strengths[anchor] = 0.0
    return strengths
