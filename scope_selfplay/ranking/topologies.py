"""Designs without rounds: everybody against everybody, everybody against an anchor, and the live tournament."""

from collections.abc import Sequence
from typing import Literal

from scope_selfplay.ranking.matches import (
    Match,
    MatchScores,
    Score,
    Strengths,
    Topology,
    all_pairs,
    counterbalanced,
)
from scope_selfplay.ranking.shares import bradley_terry, soft_share
from scope_selfplay.schemas import Outcome

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


def meet_anchor(n: int, anchor: int, scores: MatchScores, anchor_score: AnchorScore = "zero") -> Topology:
    """The wave of `anchor`, recorded in the caller's empty scores."""
    if not 0 <= anchor < n:
        raise ValueError(
            f"anchor {anchor} is not an entrant; with {n} entrants it is a number from 0 to {n - 1}"
        )
    matches = [Match(anchor, entrant) for entrant in range(n) if entrant != anchor]
    for match, outcome in zip(matches, (yield matches), strict=True):
        scores.record(match, outcome)
    strengths = [scores.mean(entrant) for entrant in range(n)]
    if anchor_score == "zero" and scores.score == "margin" and strengths[anchor] is not None:
        strengths[anchor] = 0.0
    return strengths


class LiveLeaderboard:
    """The running leaderboard of one group, fed as rollouts finish (Reasoning Arena, section 4).

    Ordered by the mean soft share of the judged matches, one half before the first one, ties by arrival.
    """

    def __init__(self, *, gamma: float = 0.9) -> None:
        self._gamma = gamma
        self._scores = MatchScores()
        self._points: dict[int, list[float]] = {}
        self._shares: list[tuple[int, int, float]] = []

    def join(self, entrant: int) -> list[Match]:
        """The newcomer's matches: with the best, the worst and the median, as far as there are so many.

        Of an even number of others the median is the better of the middle two. Every match puts first who has
        been shown first less often. Raises ValueError for an entrant that has joined before.
        """
        if entrant in self._points:
            raise ValueError(f"entrant {entrant} has joined before")
        ranked = [other for other, _ in self.leaderboard()]
        between = ranked[1:-1]
        median = between[(len(between) - 1) // 2 :][:1]
        opponents = [*ranked[:1], *ranked[1:][-1:], *median]
        self._points[entrant] = []
        return [self._scores.arrange(entrant, opponent) for opponent in opponents]

    def record(self, match: Match, outcome: Outcome | None) -> None:
        """Records a verdict; None, a call that failed, leaves no trace."""
        if outcome is None:
            return
        self._shares.append((*match, soft_share(outcome, self._gamma)))
        won = soft_share(outcome, 1.0)
        self._points[match.first].append(won)
        self._points[match.second].append(1.0 - won)

    def strengths(self) -> Strengths:
        """Bradley-Terry log-strengths by number, up to the highest that joined; None: never judged."""
        return bradley_terry(1 + max(self._points, default=-1), self._shares)

    def leaderboard(self) -> list[tuple[int, float | None]]:
        """The entrants that have joined, best first, with their mean soft share of judged matches; None without any."""
        # Points are halves, so that equal rates are equal numbers; sums of shares like 0.9 and 0.1 are not.
        rates = {entrant: sum(won) / len(won) if won else 0.5 for entrant, won in self._points.items()}
        ranked = sorted(rates, key=rates.__getitem__, reverse=True)
        low, span = 1.0 - self._gamma, 2.0 * self._gamma - 1.0
        return [
            (entrant, low + span * rates[entrant] if self._points[entrant] else None) for entrant in ranked
        ]


def live(arrival: Sequence[int], *, gamma: float = 0.9) -> Topology:
    """The live tournament for a known order of arrival: a wave for every newcomer but the first."""
    board = LiveLeaderboard(gamma=gamma)
    for entrant in arrival:
        matches = board.join(entrant)
        outcomes = (yield matches) if matches else []
        for match, outcome in zip(matches, outcomes, strict=True):
            board.record(match, outcome)
    return board.strengths()
