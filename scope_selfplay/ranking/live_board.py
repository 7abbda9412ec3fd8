"""The live tournament of Reasoning Arena, section 4: a finished trace meets three that are already there."""

from collections.abc import Sequence

from scope_selfplay.ranking.matches import Match, MatchScores, Strengths, Topology
from scope_selfplay.ranking.shares import bradley_terry, soft_share
from scope_selfplay.schemas import Outcome


class LiveBoard:
    """The running leaderboard of one group, driven by whoever sees rollouts finish and verdicts arrive.

    Ordered by the mean soft share of the judged matches, one half before the first one, ties by arrival.
    """

    def __init__(self, *, gamma: float = 0.9) -> None:
        self._gamma = gamma
        self._ledger = MatchScores()
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
        return [self._ledger.arrange(entrant, opponent) for opponent in opponents]

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
        """Who has joined, best first, with the mean soft share of the judged matches; None without any."""
        # Points are halves, so that equal rates are equal numbers; sums of shares like 0.9 and 0.1 are not.
        rates = {entrant: sum(won) / len(won) if won else 0.5 for entrant, won in self._points.items()}
        ranked = sorted(rates, key=rates.__getitem__, reverse=True)
        low, span = 1.0 - self._gamma, 2.0 * self._gamma - 1.0
        return [
            (entrant, low + span * rates[entrant] if self._points[entrant] else None) for entrant in ranked
        ]


def live(arrival: Sequence[int], *, gamma: float = 0.9) -> Topology:
    """The board for a known order of arrival: a wave for each newcomer but the first."""
    board = LiveBoard(gamma=gamma)
    for entrant in arrival:
        matches = board.join(entrant)
        outcomes = (yield matches) if matches else []
        for match, outcome in zip(matches, outcomes, strict=True):
            board.record(match, outcome)
    return board.strengths()
