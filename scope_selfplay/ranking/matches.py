"""What a topology asks for and what it is sent: matches, outcomes, waves and strengths; rewards from strengths; and
strengths from shares of matches (Bradley and Terry; Reasoning Arena, equations 7 and 10).

Of an outcome the topologies use only the margin, first minus second: the two scores of a call share a scale,
the scores of two calls need not. A caller who knows better may choose `score="own"` where the papers do; how far
scores compare between calls can be found from a whole step (`balanced.score_level`).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Generator, Hashable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.values import Outcome


class Match(NamedTuple):
    """Two entrants in the order in which the judge sees them."""

    first: int
    second: int


Strengths = list[float | None]
"""One number per entrant, higher is better; None for an entrant that was never judged."""

Topology = Generator[list[Match], list[Outcome | None], Strengths]
"""Yields waves of independent matches, is sent one outcome per match (None: no verdict), returns strengths.

The first send is None, as for every generator. A wave may be empty.
"""

GroupTopology = Generator[list[list[int]], list[list[int] | None], Strengths]
"""Yields waves of independent groups, entrants in the order shown, is sent the winners' entrant numbers."""


class ComparisonGraph(NamedTuple):
    """A comparison graph: which entrants met, in which order they were shown, and what came out."""

    matches: tuple[Match, ...] = ()
    outcomes: tuple[Outcome | None, ...] = ()

    def merged(self, identity: Sequence[Hashable]) -> "ComparisonGraph":
        """The same between different identities, numbered by first appearance, as in `dict.fromkeys(identity)`.

        Equals are one entrant and do not meet; an ordered pair of identities, of which only the first was judged
        anew, counts once. What remains are verdicts that were given independently of each other.
        """
        number = {name: place for place, name in enumerate(dict.fromkeys(identity))}
        found: dict[Match, Outcome | None] = {}
        for match, outcome in zip(self.matches, self.outcomes, strict=True):
            first, second = number[identity[match.first]], number[identity[match.second]]
            if first != second:
                found.setdefault(Match(first, second), outcome)
        return ComparisonGraph(tuple(found), tuple(found.values()))


Score = Literal["margin", "own"]
"""What a match adds to an entrant's average: its score less the opponent's, or its own score alone."""


class MatchScores:
    """The scores of one play, per entrant, and who was shown first how often."""

    def __init__(self, score: Score = "margin") -> None:
        self.score = score
        self._scores: defaultdict[int, list[float]] = defaultdict(list)
        self._lead: Counter[int] = Counter()

    def arrange(self, one: int, other: int) -> Match:
        """Puts the entrant first that has been shown first less often, so that position bias evens out."""
        match = Match(one, other) if self._lead[one] <= self._lead[other] else Match(other, one)
        self._lead[match.first] += 1
        self._lead[match.second] -= 1
        return match

    def record(self, match: Match, outcome: Outcome | None) -> None:
        """Records the scores of both sides; a match without verdict leaves no trace."""
        if outcome is None:
            return
        first, second = outcome
        if self.score == "margin":
            first, second = first - second, second - first
        self._scores[match.first].append(first)
        self._scores[match.second].append(second)

    def mean(self, entrant: int) -> float | None:
        """The average over the judged matches; None without any."""
        scores = self._scores[entrant]
        return sum(scores) / len(scores) if scores else None

    def means(self, n: int) -> Strengths:
        """Those of the first n entrants."""
        return [self.mean(entrant) for entrant in range(n)]


def all_pairs(n: int) -> list[tuple[int, int]]:
    return [(one, other) for one in range(n) for other in range(one + 1, n)]


def counterbalanced(pairs: Iterable[tuple[int, int]]) -> list[Match]:
    """Orders distinct pairs so that every entrant is shown first as often as second, within one.

    A closed walk leaves every entrant as often as it reaches it. So the pairs are walked in closed trails,
    after the entrants with an odd number of pairs have each been joined to one extra point, whose pairs are
    dropped.
    """
    extra = -1
    ahead: dict[int, dict[int, None]] = {}
    for one, other in pairs:
        ahead.setdefault(one, {})[other] = None
        ahead.setdefault(other, {})[one] = None
    for entrant in [entrant for entrant, others in ahead.items() if len(others) % 2]:
        ahead[entrant][extra] = None
        ahead.setdefault(extra, {})[entrant] = None
    matches = []
    for start in ahead:
        here = start
        while ahead[here]:
            there = next(iter(ahead[here]))
            del ahead[here][there], ahead[there][here]
            if extra not in (here, there):
                matches.append(Match(here, there))
            here = there
    return matches


def min_max(scores: Sequence[float | None], epsilon: float = 1e-6, *, below: int = 0) -> Strengths:
    """(s - min) / (max - min + epsilon), in [0, 1); equal scores give 0 for all (Tournament-GRPO eq. 8).

    The paper names an epsilon and no value; ours is 1e-6. With `below`, others that did not compete stand at 0, and
    the weakest score one step above them: what lies between two neighbouring scores on average.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return [None] * len(scores)
    low, span = min(known), max(known) - min(known) + epsilon
    if below:
        step = (max(known) - low) / (len(known) - 1) if max(known) > low else 1.0
        low, span = low - step, span + step
    return [None if score is None else (score - low) / span for score in scores]


def rank_rewards(strengths: Sequence[float | None], *, below: int = 0) -> Strengths:
    """1 - rank / (N - 1), rank 0 for the best, the mean rank for ties (ArenaRL, equation 6).

    N counts the judged entrants and those `below`, who did not compete and share the last place. If N is 1, the one
    gets 0.5, what everybody gets when all are equal.
    """
    places = rank_points([None if strength is None else (strength,) for strength in strengths])
    rivals = sum(place is not None for place in places) + below - 1
    if rivals < 1:
        return [None if place is None else 0.5 for place in places]
    return [None if place is None else (place + below) / rivals for place in places]


def rank_points(keys: Sequence[tuple[float, ...] | None]) -> Strengths:
    """How many judged entrants each one is ahead of, ties counting half; a higher key is better."""
    ascending = sorted(key for key in keys if key is not None)
    below: dict[tuple[float, ...], int] = {}
    for place, key in enumerate(ascending):
        below.setdefault(key, place)
    return [None if key is None else below[key] + (ascending.count(key) - 1) / 2 for key in keys]


_EQUAL = 1e-9


def is_flat(rewards: Sequence[float | None]) -> bool:
    """D(G) = 0 of equation 3: at least two rewards are known and all of these are equal, to within 1e-9."""
    known = [reward for reward in rewards if reward is not None]
    return len(known) > 1 and max(known) - min(known) <= _EQUAL


def route(
    groups: Sequence[Sequence[float | None]], prices: Sequence[int], rng: random.Random, *, budget: int
) -> list[bool]:
    """Which flat groups of a step go to tournaments: as many as the budget of judge calls pays for.

    `prices` are the calls that each group may take. Groups are drawn in random order, so that no task is always
    served first, and one that no longer fits is passed over for a cheaper one. Raises ValueError for a negative budget.
    """
    if budget < 0:
        raise ValueError(f"the budget of judge calls is {budget}; it is at least 0")
    routed = [False] * len(groups)
    spent = 0
    candidates = [number for number, rewards in enumerate(groups) if is_flat(rewards)]
    rng.shuffle(candidates)
    for number in candidates:
        if spent + prices[number] <= budget:
            routed[number] = True
            spent += prices[number]
    return routed


class LiveRoute:
    """The same decision while the rollouts of one group still finish.

    Nothing is compared until a second known reward equals the first; from then on arrivals join the leaderboard
    at once, until one differs: then the group is not flat, and the calls made are spent.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._reward: float | None = None
        self._differs = False

    @property
    def is_flat(self) -> bool:
        """True while at least two known rewards have arrived and none differed."""
        return self._reward is not None and not self._waiting and not self._differs

    def arrive(self, entrant: int, reward: float | None) -> list[int]:
        """The entrants that join the leaderboard now, in order of arrival."""
        if reward is None or self._differs:
            return []
        if self._reward is None:
            self._reward, self._waiting = reward, [entrant]
            return []
        self._differs = abs(reward - self._reward) > _EQUAL
        joining = [] if self._differs else [*self._waiting, entrant]
        self._waiting = []
        return joining


Floats = NDArray[np.float64]

# A full Newton step of this reach leaves an error of about its square.
_LAST_REACH = 1e-5
_MOST_STEPS = 200


GAMMA = 0.9
"""What a won match is worth (Reasoning Arena, section 5): a share is how much of it goes to the first entrant, in
[0, 1], and the second gets the rest."""


def soft_share(outcome: Outcome, gamma: float = GAMMA) -> float:
    """gamma for a win, one half for a tie, 1 - gamma for a loss of the first (equation 7).

    Raises ValueError unless gamma is in (1/2, 1].
    """
    if not 0.5 < gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}; the share of a won match is above 1/2 and at most 1")
    if outcome.first == outcome.second:
        return 0.5
    return gamma if outcome.first > outcome.second else 1 - gamma


def bradley_terry(n: int, shares: Sequence[tuple[int, int, float]], *, ridge: float = 1.0) -> Strengths:
    """Log-strengths of n entrants from (first, second, share of the first) triples; they sum to 0.

    Minimises equation 10: the cross-entropy of every share and of its mirror, plus ridge/2 * |beta|^2; exact
    to 1e-9 at the paper's ridge of 1. The penalty keeps an undefeated entrant finite and ties loose parts of
    the comparison graph together. An entrant without a share is None. Raises ValueError for a share outside
    [0, 1] or a ridge <= 0.
    """
    won = np.zeros((1, n, n))
    for first, second, share in shares:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of {first} against {second} is {share}; a share is between 0 and 1")
        won[0, first, second] += share
        won[0, second, first] += 1 - share
    beta = bradley_terry_batch(won, ridge=ridge)[0]
    judged = {entrant for first, second, _ in shares for entrant in (first, second)}
    return [float(beta[entrant]) if entrant in judged else None for entrant in range(n)]


def bradley_terry_batch(won: Floats, *, ridge: float = 1.0) -> Floats:
    """The same fit for many groups at once: log-strengths (groups, n).

    `won` (groups, n, n): the sum of the shares that entrant i took from entrant j; sums are all that the
    objective depends on. Smaller groups are padded with zeros; an entrant without matches gets 0. Raises
    ValueError for entries that are negative or not numbers, and for a ridge <= 0.

    Newton's method. With d the largest change of a difference of two strengths, a step longer than d = 1 is
    cut to log(1 + d)/d of its length: the logistic loss is generalised self-concordant, so that every step
    descends, from any start and without a line search, and full steps converge quadratically.
    """
    if ridge <= 0:
        raise ValueError(f"ridge is {ridge}; only a positive one keeps an undefeated entrant finite")
    if not (won >= 0).all():
        raise ValueError("an entry of `won` is negative or not a number; sums of shares are neither")
    if not won.size:
        return np.zeros(won.shape[:2])
    # Groups come last, so that every operation below runs along them.
    taken = np.ascontiguousarray(won.transpose(1, 2, 0))
    games, diagonal = taken + taken.transpose(1, 0, 2), np.arange(len(taken))
    beta = np.zeros((won.shape[1], won.shape[0]))
    for _ in range(_MOST_STEPS):
        worth = np.exp(beta - beta.max(axis=0))
        chance = worth[:, None] / (worth[:, None] + worth)
        expected = games * chance
        # Every match counts twice, once as its mirror.
        slope = 2.0 * (taken - expected).sum(axis=1) - ridge * beta
        curve = 2.0 * expected * (chance - 1.0)
        curve[diagonal, diagonal] = ridge - curve.sum(axis=1)
        step = np.linalg.solve(curve.transpose(2, 0, 1), slope.T[:, :, None])[:, :, 0].T
        reach = np.ptp(step, axis=0)
        beta += step * np.where(reach > 1.0, np.log1p(reach) / np.maximum(reach, 1.0), 1.0)
        if reach.max() < _LAST_REACH:
            return beta.T
    raise AssertionError(f"no Bradley-Terry optimum after {_MOST_STEPS} Newton steps at ridge {ridge}")
