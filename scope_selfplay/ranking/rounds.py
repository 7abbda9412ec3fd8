"""Tournaments in rounds that are drawn by what came before: Swiss rounds, where nobody is eliminated and entrants with
the same record meet (ArenaRL section 4.5), and group tournaments, where the judge picks the winners of small groups
(Tournament-GRPO, Algorithm 1).
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from scope_selfplay.ranking.matches import GroupTopology, Match, MatchScores, Topology, rank_points
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
    table, scores = _Table(n), MatchScores()
    for _ in range(rounds):
        order = list(range(n))
        rng.shuffle(order)
        order.sort(key=table.share, reverse=True)
        matches = [scores.arrange(one, other) for one, other in _pair_up(order, table)]
        for match, outcome in zip(matches, (yield matches), strict=True):
            table.record(match, outcome)
    return rank_points([table.record_of(entrant) for entrant in range(n)])


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


def group_tournament(
    n: int,
    rng: random.Random,
    *,
    group_size: int,
    winners: int,
    final: int,
    repeats: int,
    below: int = 0,
) -> GroupTopology:
    """A strength is the number of groups won over all repeats, omega_t = 1 for every round.

    Each repeat starts from all entrants, shuffles and splits them every round, and ends with at most `final`
    left. Groups are as even as can be and never larger than `group_size`. One of at most `winners` goes on
    whole, without call or points: a bye, which nobody gets twice while others had none. Should a round
    consist only of byes, the repeat ends there. In a group without verdict nobody scores and the first
    `winners` of the shuffled order go on. The repeats run side by side: wave t holds the groups of round t
    of all of them.

    What an entrant scored in a repeat is scaled by rounds reached over rounds contested, so that a bye neither
    earns nor costs. Without that, of 5 entrants in groups of 4 with 2 winners a perfect judge puts the best
    first in 68 % of the runs only. The paper has only sizes without byes, for which both are the same.

    The last `below` of the n have nothing to judge: they are drawn like all others, beaten by everybody else without
    a call, and never score. What is left of a group is asked about where it holds more than `winners`.

    Raises ValueError unless 1 <= winners < group_size, winners <= final and repeats >= 1, and when it is sent
    anything but `winners` different members of a group.
    """
    if not (1 <= winners < group_size and winners <= final and repeats >= 1):
        raise ValueError(
            f"group_size={group_size}, winners={winners}, final={final}, repeats={repeats}:"
            " a group tournament needs 1 <= winners < group_size, winners <= final and repeats >= 1"
        )
    runs = [_Repeat(n, group_size, winners, below) for _ in range(repeats)]
    while playing := [run for run in runs if len(run.entrants) > final and run.draw(rng)]:
        wave = [group for run in playing for group in run.open_groups]
        verdicts = iter((yield wave) if wave else [])
        for run in playing:
            run.settle(verdicts)
    judged = set(range(n - below, n)).union(*(run.judged for run in runs))
    return [
        float(sum(run.score(entrant) for run in runs)) if entrant in judged else None for entrant in range(n)
    ]


class _Repeat:
    """One tournament from all entrants down to the last, one round at a time."""

    def __init__(self, n: int, group_size: int, winners: int, below: int) -> None:
        self.entrants = list(range(n))
        self.judged: set[int] = set()
        self._first_below = n - below
        self._group_size = group_size
        self._winners = winners
        self._groups: list[list[int]] = []
        self._wins: Counter[int] = Counter()
        self._contested: Counter[int] = Counter()
        self._byes: Counter[int] = Counter()

    @property
    def open_groups(self) -> list[list[int]]:
        """Whom a verdict has to choose from, per group of this round that needs one."""
        rivals = [self._rivals(group) for group in self._groups if len(group) > self._winners]
        return [group for group in rivals if len(group) > self._winners]

    def draw(self, rng: random.Random) -> bool:
        """Splits the remaining entrants at random, larger groups first; whether anybody is to be beaten."""
        order = list(self.entrants)
        rng.shuffle(order)
        count = -(-len(order) // self._group_size)
        size, larger = divmod(len(order), count)
        playing = larger * (size + 1)
        if size <= self._winners:
            # The smaller groups are byes: whoever had one before plays now.
            order.sort(key=self._byes.__getitem__, reverse=True)
            contested = order[:playing]
            rng.shuffle(contested)
            order[:playing] = contested
        bounds = [*range(0, playing, size + 1), *range(playing, len(order), size), len(order)]
        self._groups = [order[low:high] for low, high in pairwise(bounds)]
        return any(len(group) > self._winners for group in self._groups)

    def settle(self, verdicts: Iterator[list[int] | None]) -> None:
        """Ends the round, with one verdict for each group that needed one."""
        self.entrants = [entrant for group in self._groups for entrant in self._going_on(group, verdicts)]

    def score(self, entrant: int) -> float:
        won, contested = self._wins[entrant], self._contested[entrant]
        return won * (1 + self._byes[entrant] / contested) if contested else won

    def _going_on(self, group: list[int], verdicts: Iterator[list[int] | None]) -> list[int]:
        if len(group) <= self._winners:
            self._byes.update(group)
            return group
        self._contested.update(group)
        rivals = self._rivals(group)
        chosen = next(verdicts) if len(rivals) > self._winners else rivals
        if chosen is None:
            return rivals[: self._winners]
        if len(rivals) > self._winners and (
            len(chosen) != self._winners or len(set(rivals) & set(chosen)) != self._winners
        ):
            raise ValueError(f"{self._winners} of the group {rivals} were to be chosen, not {chosen}")
        self.judged.update(rivals)
        self._wins.update(chosen)
        going_on = [entrant for entrant in group if entrant in chosen]
        beaten = [entrant for entrant in group if entrant not in rivals]
        return [*going_on, *beaten[: self._winners - len(chosen)]]

    def _rivals(self, group: list[int]) -> list[int]:
        return [entrant for entrant in group if entrant < self._first_below]
