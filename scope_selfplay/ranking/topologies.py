"""Designs without rounds: everybody against everybody, everybody against an anchor, and the live tournament."""

import math
import random
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import (
    GroupTopology,
    Match,
    MatchScores,
    Score,
    Strengths,
    Topology,
    all_pairs,
    bradley_terry,
    counterbalanced,
    rank_points,
    soft_share,
)


def round_robin(n: int, *, gamma: float = 1.0) -> Topology:
    """Every pair meets once; a strength is the mean share over the judged matches, in [1 - gamma, gamma].

    `gamma=1` is the win rate of ArenaRL equation 4 (a tie counts half), a smaller gamma the soft win rate of
    Reasoning Arena equation 8. Waves: one, of n(n-1)/2 matches, in a counterbalanced order.
    """
    matches, shares = counterbalanced(all_pairs(n)), MatchScores("own")
    for match, outcome in zip(matches, (yield matches), strict=True):
        if outcome is not None:
            share = soft_share(outcome, gamma)
            shares.record(match, Outcome(share, 1 - share))
    return shares.means(n)


def anchor(n: int, *, score: Score = "margin") -> Topology:
    """Every entrant meets the anchor, the first one, a greedy rollout (ArenaRL section 4.2); a strength is its margin.

    The anchor's own strength is 0, on the scale of the margins: the paper's rule, the mean of its own results,
    misplaces an anchor that is far from the middle of the group. `score="own"` ranks by own scores as the paper does;
    the anchor then has that mean. Waves: one, of n-1 matches, the anchor first in all of them, so that position bias
    is the same for all others.
    """
    return (yield from _meet_anchor(n, MatchScores(score)))


def _meet_anchor(n: int, scores: MatchScores) -> Topology:
    """The wave of the anchor, recorded in the caller's empty scores."""
    matches = [Match(0, entrant) for entrant in range(1, n)]
    for match, outcome in zip(matches, (yield matches), strict=True):
        scores.record(match, outcome)
    strengths = scores.means(n)
    if scores.score == "margin" and strengths[0] is not None:
        strengths[0] = 0.0
    return strengths


class LiveLeaderboard:
    """The running leaderboard of one group, fed as rollouts finish (Reasoning Arena, section 4).

    Ordered by the mean soft share of the judged matches, one half before the first one, ties by arrival.
    """

    def __init__(self) -> None:
        # Of a win, a tie and a loss: halves, so that equal means are equal numbers; sums of 0.9 and 0.1 are not.
        self._points = MatchScores("own")
        self._shares: list[tuple[int, int, float]] = []
        self._joined: list[int] = []

    def join(self, entrant: int) -> list[Match]:
        """The newcomer's matches: with the best, the worst and the median, as far as there are so many.

        Of an even number of others the median is the better of the middle two. Every match puts first who has
        been shown first less often. Raises ValueError for an entrant that has joined before.
        """
        if entrant in self._joined:
            raise ValueError(f"entrant {entrant} has joined before")
        ranked = self.leaderboard()
        between = ranked[1:-1]
        median = between[(len(between) - 1) // 2 :][:1]
        opponents = [*ranked[:1], *ranked[1:][-1:], *median]
        self._joined.append(entrant)
        return [self._points.arrange(entrant, opponent) for opponent in opponents]

    def record(self, match: Match, outcome: Outcome | None) -> None:
        """Records a verdict; None, a call that failed, leaves no trace."""
        if outcome is not None:
            self._shares.append((*match, soft_share(outcome)))
            self._points.record(match, Outcome(outcome.share, 1 - outcome.share))

    def strengths(self) -> Strengths:
        """Bradley-Terry log-strengths by number, up to the highest that joined; None: never judged."""
        return bradley_terry(1 + max(self._joined, default=-1), self._shares)

    def leaderboard(self) -> list[int]:
        """The entrants that have joined, best first."""

        def rate(entrant: int) -> float:
            mean = self._points.mean(entrant)
            return 0.5 if mean is None else mean

        return sorted(self._joined, key=rate, reverse=True)


Slot = int | None
"""An entrant, or the empty slot that gives its neighbour a bye."""


class Decided(NamedTuple):
    """The winner and the loser of every pair of a round; an empty slot never wins against an entrant."""

    winners: list[Slot]
    losers: list[Slot]


def single_elimination(n: int, *, score: Score = "margin") -> Topology:
    """Seeds by the margin over the anchor, then a bracket (ArenaRL section 4.3).

    A strength is the place by the round of the defeat, then by the mean score over all matches, seeding
    included: the mean margin, or with `score="own"`, as in the paper, the mean own score, which then
    seeds too. Waves: 1 + ceil(log2 n), together 2(n-1) matches.
    """
    scores = MatchScores(score)
    seeding = yield from _meet_anchor(n, scores)
    known = [-math.inf if strength is None else strength for strength in seeding]
    # From the strongest to the weakest, those never judged last, ties by number.
    seeds = sorted(range(n), key=known.__getitem__, reverse=True)
    lasted = [0] * n
    slots = _slots(seeds)
    while len(slots) > 1:
        slots = (yield from _decide(_neighbours(slots), seeds, scores)).winners
        _note(lasted, slots)
    return _places(lasted, scores)


def double_elimination(
    n: int, rng: random.Random, *, score: Score = "margin", reset: bool = False
) -> Topology:
    """Random seeds; the second defeat eliminates (ArenaRL section 4.4).

    The final is one match. With `reset` it is played again where the undefeated finalist lost it, whose first defeat
    that was; `driver.play` has to be told to judge rematches anew.

    A strength is the place by the round of elimination, then by the mean score as in
    `single_elimination`. Each round of the winners' bracket runs beside one among the beaten. Waves: 2
    ceil(log2 n), together 2(n-1) matches. A match without verdict goes to the lower number, since a
    random seed carries no information about its entrant.
    """
    drawn = list(range(n))
    rng.shuffle(drawn)
    scores, lasted, numbers = MatchScores(score), [0] * n, range(n)
    if n < 2:
        return _places(lasted, scores)
    undefeated, beaten = yield from _decide(_neighbours(_slots(drawn)), numbers, scores)
    while len(undefeated) > 1:
        upper = _neighbours(undefeated)
        decided = yield from _decide(upper + _neighbours(beaten), numbers, scores)
        undefeated, fallen = decided.winners[: len(upper)], decided.losers[: len(upper)]
        beaten = decided.winners[len(upper) :]
        _note(lasted, [*undefeated, *fallen, *beaten])
        # Reversed, so that entrants who have just lost do not at once meet those whom they beat before.
        beaten, _ = yield from _decide(list(zip(beaten, reversed(fallen), strict=True)), numbers, scores)
        _note(lasted, [*undefeated, *beaten])
    finalists = [(undefeated[0], beaten[0])]
    champion = (yield from _decide(finalists, numbers, scores)).winners
    if reset and champion != undefeated:
        champion = (yield from _decide(finalists, numbers, scores)).winners
    _note(lasted, champion)
    return _places(lasted, scores)


def bracket_slots(n: int) -> list[int]:
    """Seed numbers in bracket order, where neighbours meet: the best two only in the final."""
    slots = [0]
    while len(slots) < n:
        last = 2 * len(slots) - 1
        slots = [seed for upper in slots for seed in (upper, last - upper)]
    return slots


def _decide(
    pairs: list[tuple[Slot, Slot]], seeds: Sequence[int], scores: MatchScores
) -> Generator[list[Match], list[Outcome | None], Decided]:
    """Plays one round in at most one wave. `seeds` holds all entrants, the better seed first."""
    matches = [scores.arrange(one, other) for one, other in pairs if one is not None and other is not None]
    outcomes = (yield matches) if matches else []
    margins: dict[int, float] = {}
    for match, outcome in zip(matches, outcomes, strict=True):
        scores.record(match, outcome)
        if outcome is not None:
            margins[match.first] = outcome.margin
            margins[match.second] = -margins[match.first]

    def claim(slot: Slot) -> tuple[bool, float, int]:
        return (False, 0.0, 0) if slot is None else (True, margins.get(slot, 0.0), -seeds.index(slot))

    return Decided([max(pair, key=claim) for pair in pairs], [min(pair, key=claim) for pair in pairs])


def _slots(seeds: Sequence[int]) -> list[Slot]:
    return [seeds[seed] if seed < len(seeds) else None for seed in bracket_slots(len(seeds))]


def _neighbours(slots: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
    return list(zip(slots[::2], slots[1::2], strict=True))


def _note(lasted: list[int], slots: Sequence[Slot]) -> None:
    """One more round for all who are still in."""
    for entrant in slots:
        if entrant is not None:
            lasted[entrant] += 1


def _places(lasted: Sequence[int], scores: MatchScores) -> Strengths:
    """Later defeat first, then the mean score; an entrant with only byes or failed matches was never judged."""
    means = zip(lasted, scores.means(len(lasted)), strict=True)
    return rank_points([None if mean is None else (stage, mean) for stage, mean in means])


_MOST_TRIES = 2_000

Pairs = list[tuple[int, int]]


def swiss(n: int, rng: random.Random) -> Topology:
    """A strength is the place by the share of won games, then by the opponents' shares (Buchholz); ties stay ties.

    A tied match is half a win for both. With an odd n one of the lowest gets a bye, which counts as a won game, and
    never a second one. Shares, where the paper has sums, so that a match without verdict costs nobody anything.
    Waves: ceil(log2 n), of floor(n/2) matches each.
    """
    table, scores = _Table(n), MatchScores()
    for _ in range(max(n - 1, 0).bit_length()):
        order = list(range(n))
        rng.shuffle(order)
        order.sort(key=table.share, reverse=True)
        matches = [scores.arrange(one, other) for one, other in _pair_up(order, table)]
        for match, outcome in zip(matches, (yield matches), strict=True):
            table.record(match, outcome)
    return rank_points([table.record_of(entrant) for entrant in range(n)])


class _Table:
    """Points of every game, byes and opponents so far. A bye is a game without an opponent."""

    def __init__(self, n: int) -> None:
        self._points: list[list[float]] = [[] for _ in range(n)]
        self.byes: set[int] = set()
        self.met: list[set[int]] = [set() for _ in range(n)]
        self._judged_with: list[list[int]] = [[] for _ in range(n)]

    def share(self, entrant: int) -> float:
        """Points per game; one half before the first game."""
        points = self._points[entrant]
        return sum(points) / len(points) if points else 0.5

    def grant_bye(self, entrant: int) -> None:
        self.byes.add(entrant)
        self._points[entrant].append(1.0)

    def record(self, match: Match, outcome: Outcome | None) -> None:
        self.met[match.first].add(match.second)
        self.met[match.second].add(match.first)
        if outcome is None:
            return
        won = outcome.share
        for entrant, opponent, points in ((*match, won), (match.second, match.first, 1 - won)):
            self._points[entrant].append(points)
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
    byes = [entrant for entrant in reversed(order) if entrant not in table.byes] if len(order) % 2 else [None]
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
    rivals = [rival for rival in others if rival not in table.met[one]]
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
        other = next((rival for rival in left if rival not in table.met[one]), left[0])
        left.remove(other)
        pairs.append((one, other))
    return pairs


def group_tournament(
    n: int, rng: random.Random, *, group_size: int, winners: int, final: int, repeats: int, below: int = 0
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
