"""Swiss rounds: nobody is eliminated, and entrants with the same record meet (ArenaRL section 4.5)."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from scope_selfplay.ranking.matches import Match, MatchScores, Topology, standing
from scope_selfplay.schemas import Outcome

_MOST_TRIES = 2_000

Pairs = list[tuple[int, int]]


def swiss(n: int, rng: random.Random, *, rounds: int | None = None) -> Topology:
    """A strength is the place by the share of won games, then by the opponents' shares (Buchholz); ties stay
    ties.

    A tied match is half a win for both. With an odd n one of the lowest gets a bye, which counts as a won
    game, and never a second one. Shares, where the paper has sums, so that a match without verdict costs
    nobody anything. Waves: `rounds`, by default ceil(log2 n), of floor(n/2) matches each. Raises ValueError
    for rounds outside 1 .. n-1, beyond which pairs have to meet again.
    """
    if rounds is None:
        rounds = (n - 1).bit_length() if n > 1 else 0
    elif not 1 <= rounds < n:
        raise ValueError(f"a Swiss tournament of {n} entrants has 1 to {n - 1} rounds, not {rounds}")
    table, ledger = _Table(n), MatchScores()
    for _ in range(rounds):
        order = list(range(n))
        rng.shuffle(order)
        order.sort(key=table.share, reverse=True)
        matches = [ledger.arrange(one, other) for one, other in _pair_up(order, table)]
        for match, outcome in zip(matches, (yield matches), strict=True):
            table.record(match, outcome)
    return standing([table.record_of(entrant) for entrant in range(n)])


class _Table:
    """Points, games, byes and opponents so far. A bye is a game without an opponent."""

    def __init__(self, n: int) -> None:
        self._points = [0.0] * n
        self._games = [0] * n
        self._byes: set[int] = set()
        self._met: list[set[int]] = [set() for _ in range(n)]
        self._judged_with: list[list[int]] = [[] for _ in range(n)]

    def share(self, entrant: int) -> float:
        """Points per game; one half before the first game."""
        return self._points[entrant] / self._games[entrant] if self._games[entrant] else 0.5

    def had_bye(self, entrant: int) -> bool:
        return entrant in self._byes

    def have_met(self, one: int, other: int) -> bool:
        return other in self._met[one]

    def grant_bye(self, entrant: int) -> None:
        self._byes.add(entrant)
        self._points[entrant] += 1.0
        self._games[entrant] += 1

    def record(self, match: Match, outcome: Outcome | None) -> None:
        self._met[match.first].add(match.second)
        self._met[match.second].add(match.first)
        if outcome is None:
            return
        won = (outcome.first > outcome.second) + (outcome.first == outcome.second) / 2
        for entrant, opponent, points in ((*match, won), (match.second, match.first, 1 - won)):
            self._points[entrant] += points
            self._games[entrant] += 1
            self._judged_with[entrant].append(opponent)

    def record_of(self, entrant: int) -> tuple[float, float] | None:
        """Own share, then the opponents' mean share; None when no match was judged."""
        opponents = self._judged_with[entrant]
        if not opponents:
            return None
        return self.share(entrant), sum(map(self.share, opponents)) / len(opponents)


def _pair_up(order: Sequence[int], table: _Table) -> Pairs:
    """Pairs neighbours of the order, best first, and grants the bye of an odd number to one of the lowest.

    In this order of importance: equal records meet, nobody meets again, the bye goes to the lowest.
    """
    byes = (
        [entrant for entrant in reversed(order) if not table.had_bye(entrant)] if len(order) % 2 else [None]
    )
    tries = iter(range(_MOST_TRIES))
    for like, bye in product((True, False), byes):
        pairs = _new_pairs([entrant for entrant in order if entrant != bye], table, tries, like=like)
        if pairs is not None:
            break
    else:
        bye = byes[0]
        pairs = _nearest_pairs([entrant for entrant in order if entrant != bye], table)
    if bye is not None:
        table.grant_bye(bye)
    return pairs


def _new_pairs(waiting: list[int], table: _Table, tries: Iterator[int], *, like: bool) -> Pairs | None:
    """Pairs of entrants that have not met, from the top; None if no such pairing is found.

    Each gets a rival with the nearest record of all that are left (`like`), or of those that it has not met.
    """
    if not waiting:
        return []
    one, *others = waiting
    rivals = [rival for rival in others if not table.have_met(one, rival)]
    nearest = table.share((others if like or not rivals else rivals)[0])
    for rival in rivals:
        if table.share(rival) != nearest or next(tries, None) is None:
            return None
        rest = _new_pairs([other for other in others if other != rival], table, tries, like=like)
        if rest is not None:
            return [(one, rival), *rest]
    return None


def _nearest_pairs(waiting: list[int], table: _Table) -> Pairs:
    """From the top, each with the next that it has not met, or with the very next."""
    left, pairs = list(waiting), []
    while left:
        one = left.pop(0)
        other = next((rival for rival in left if not table.have_met(one, rival)), left[0])
        left.remove(other)
        pairs.append((one, other))
    return pairs
