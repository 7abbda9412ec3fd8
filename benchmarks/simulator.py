"""The reward designs as they are compared: a judge made of numbers, and one group before it.

Latent qualities go in; noisy, position-biased, sometimes failing verdicts come out. A session drives the package's
topologies and keeps count.
"""

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scope_selfplay.base.values import Outcome, rng_from
from scope_selfplay.ranking.balanced import balanced, fit_margins, fit_step, position_offset
from scope_selfplay.ranking.matches import GroupTopology, Match, Strengths, Topology, min_max, rank_rewards
from scope_selfplay.ranking.topologies import (
    LiveLeaderboard,
    anchor,
    double_elimination,
    group_tournament,
    round_robin,
    single_elimination,
    swiss,
)

Quality = Sequence[float]
"""Latent quality per entrant of a group, in standard deviations of the population."""


@dataclass(frozen=True)
class SimulatedJudge:
    """In a call every answer shown gets a score: quality, position, the mood of the call, logistic noise.

    All scales are in standard deviations of the latent quality. `noise`: scale of the logistic noise of
    a score. `bias`: what the first place is worth over the last. `mood`: standard deviation of a shift
    that all scores of a call share. `grain`: scores are rounded to its multiples, so that some matches
    are ties. `failure`: probability that a call brings no verdict. `vagueness`: scale of the logistic
    noise on one binary criterion.
    """

    noise: float = 0.58
    bias: float = 0.8
    mood: float = 0.7
    grain: float = 0.5
    failure: float = 0.02
    vagueness: float = 0.55

    def compare(self, quality: Quality, match: Match, rng: random.Random) -> Outcome | None:
        """The two scores; None when the call fails."""
        scores = self._scores(quality, match, rng)
        return None if scores is None else Outcome(*scores)

    def order(self, quality: Quality, group: Sequence[int], rng: random.Random) -> list[int] | None:
        """A group from the best score to the worst, ties in the order shown; None when the call fails."""
        scores = self._scores(quality, group, rng)
        if scores is None:
            return None
        ranked = sorted(zip(scores, group, strict=True), key=lambda scored: scored[0], reverse=True)
        return [entrant for _, entrant in ranked]

    def grade(self, quality: float, thresholds: Sequence[float], rng: random.Random) -> float | None:
        """Share of the criteria met, of those with a verdict; a high threshold is a hard criterion."""
        met = [
            quality + self.vagueness * _logistic(rng) > threshold
            for threshold in thresholds
            if rng.random() >= self.failure
        ]
        return sum(met) / len(met) if met else None

    def _scores(self, quality: Quality, shown: Sequence[int], rng: random.Random) -> list[float] | None:
        if rng.random() < self.failure:
            return None
        mood, last = rng.gauss(0.0, self.mood), max(len(shown) - 1, 1)
        scores = (
            quality[entrant] + mood - self.bias * place / last + self.noise * _logistic(rng)
            for place, entrant in enumerate(shown)
        )
        return [self.grain * round(score / self.grain) for score in scores]


def _logistic(rng: random.Random) -> float:
    chance = rng.uniform(1e-12, 1 - 1e-12)
    return math.log(chance / (1 - chance))


Wave = TypeVar("Wave")
Reply = TypeVar("Reply")


@dataclass
class Session:
    """One group under one design: what came out, and what it cost.

    `judged` holds the entrants in a call that brought a verdict, `matches` every presentation; `answers` are shown in
    all calls together.
    """

    quality: Quality
    judge: SimulatedJudge
    rng: random.Random
    calls: int = 0
    answers: int = 0
    waves: int = 0
    judged: set[int] = field(default_factory=set)
    matches: list[Match] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)
    strengths: Strengths = ()
    rewards: Strengths = ()

    @property
    def n(self) -> int:
        return len(self.quality)

    def play(self, topology: Topology, *, both_orders: bool = False) -> Strengths:
        """Drives a topology of matches, shown in one order or in both. Every verdict is drawn afresh."""
        return self._drive(topology, lambda match: self._match(match, both_orders))

    def play_groups(self, topology: GroupTopology, winners: int) -> Strengths:
        """Drives a group tournament in which every contested group has that many winners."""
        return self._drive(topology, lambda group: self._winners(group, winners))

    def grade(self, criteria: int) -> Strengths:
        """Mean of binary criteria whose thresholds are drawn once for the group; one call per criterion."""
        thresholds = [self.rng.gauss(0.0, 1.0) for _ in range(criteria)]
        self.calls = self.answers = criteria * self.n
        self.waves = 1
        grades = [self.judge.grade(quality, thresholds, self.rng) for quality in self.quality]
        self.judged.update(entrant for entrant, grade in enumerate(grades) if grade is not None)
        return grades

    def _drive(
        self, topology: Generator[list[Wave], list[Reply], Strengths], answer: Callable[[Wave], Reply]
    ) -> Strengths:
        try:
            wave = next(topology)
            while True:
                self.waves += 1
                wave = topology.send([answer(each) for each in wave])
        except StopIteration as stop:
            strengths: Strengths = stop.value
            return strengths

    def _match(self, match: Match, both_orders: bool) -> Outcome | None:
        straight = self._shown(match)
        if not both_orders:
            return straight
        swapped = self._shown(Match(match.second, match.first))
        if straight is None or swapped is None:
            return None
        return Outcome(straight.first + swapped.second, straight.second + swapped.first)

    def _shown(self, match: Match) -> Outcome | None:
        outcome = self.judge.compare(self.quality, match, self.rng)
        self._count(match, outcome is not None)
        self.matches.append(match)
        self.outcomes.append(outcome)
        return outcome

    def _winners(self, group: list[int], winners: int) -> list[int] | None:
        order = self.judge.order(self.quality, group, self.rng)
        self._count(group, order is not None)
        return order[:winners] if order else None

    def _count(self, shown: Sequence[int], judged: bool) -> None:
        self.calls += 1
        self.answers += len(shown)
        self.judged.update(shown if judged else ())


STEP = 64
"""Groups of one training step, over which the judge's offset and level are pooled."""


@dataclass(frozen=True)
class Design:
    """`play` judges one group. `pooled`: all groups of a step are fitted again with their common offset.

    `levels`: also with the level of the judge's scores, as the shipped `balanced`.
    """

    name: str
    play: Callable[[Session], Strengths]
    reward: Callable[[Strengths], Strengths] = min_max
    pooled: bool = False
    levels: bool = False


def run(design: Design, qualities: Sequence[Quality], judge: SimulatedJudge, seed: int) -> list[Session]:
    """Plays every group under its own seed, drawn from (seed, design, group)."""
    sessions = [
        Session(quality, judge, rng_from("group", seed, design.name, group))
        for group, quality in enumerate(qualities)
    ]
    for start in range(0, len(sessions), STEP):
        step = sessions[start : start + STEP]
        strengths = [design.play(session) for session in step]
        if design.pooled:
            strengths = _refitted(step, design.levels)
        for session, values in zip(step, strengths, strict=True):
            session.strengths, session.rewards = values, design.reward(values)
    return sessions


def designs(n: int) -> list[Design]:
    """Every design for groups of n, at the budgets of the papers and of `balanced`."""
    pairs = n * (n - 1) // 2
    live_calls = sum(min(earlier, 3) for earlier in range(n))
    budgets = sorted({2 * (n - 1), live_calls, 4 * (n - 1), pairs, 2 * pairs})
    brackets: dict[str, Callable[[Session], Topology]] = {
        "round robin": lambda session: round_robin(n),
        "anchor": lambda session: anchor(n),
        "anchor, own scores": lambda session: anchor(n, score="own"),
        "single elimination": lambda session: single_elimination(n),
        "single elimination, own scores": lambda session: single_elimination(n, score="own"),
        "double elimination": lambda session: double_elimination(n, session.rng),
        "double elimination, own scores": lambda session: double_elimination(n, session.rng, score="own"),
        "Swiss": lambda session: swiss(n, session.rng),
    }
    return [
        *(_in_both_orders(name, topology) for name, topology in brackets.items()),
        Design("live, Bradley-Terry", lambda session: session.play(_live(session))),
        Design("live, margins", lambda session: session.play(_live(session)), pooled=True),
        _groups("groups of 2, M=4", group_size=2, winners=1, repeats=4),
        _groups("groups of 4, M=8", group_size=4, winners=2, repeats=8),
        Design("rubric, 5 criteria", lambda session: session.grade(5), list),
        *(_balanced(f"balanced, {calls} calls", calls, levels=True) for calls in budgets),
        *(_balanced(f"balanced, margins, {calls} calls", calls, levels=False) for calls in budgets),
    ]


def _in_both_orders(name: str, topology: Callable[[Session], Topology]) -> Design:
    return Design(name, lambda session: session.play(topology(session), both_orders=True), rank_rewards)


def _groups(name: str, *, group_size: int, winners: int, repeats: int) -> Design:
    sizes = {"group_size": group_size, "winners": winners, "final": winners, "repeats": repeats}

    def play(session: Session) -> Strengths:
        return session.play_groups(group_tournament(session.n, session.rng, **sizes), winners)

    return Design(name, play)


def _balanced(name: str, calls: int, *, levels: bool) -> Design:
    def play(session: Session) -> Strengths:
        return session.play(balanced(session.n, calls, session.rng))

    return Design(name, play, pooled=True, levels=levels)


def _live(session: Session) -> Topology:
    """The live tournament in a random order of arrival: a wave for every newcomer but the first."""
    board = LiveLeaderboard()
    for entrant in session.rng.sample(range(session.n), session.n):
        matches = board.join(entrant)
        outcomes = (yield matches) if matches else []
        for match, outcome in zip(matches, outcomes, strict=True):
            board.record(match, outcome)
    return board.strengths()


def _refitted(sessions: Sequence[Session], levels: bool) -> list[Strengths]:
    graphs = [(session.matches, session.outcomes) for session in sessions]
    sizes = [session.n for session in sessions]
    if levels:
        return fit_step(sizes, graphs)
    offset = position_offset(graphs)
    return [fit_margins(size, *graph, offset=offset) for size, graph in zip(sizes, graphs, strict=True)]
