"""One group before the simulated judge: drives the package's topologies and keeps count."""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.simulator.judge import Quality, SimulatedJudge
from scope_selfplay.ranking.driver import TopologyRun
from scope_selfplay.ranking.matches import GroupTopology, Match, Strengths, Topology
from scope_selfplay.schemas import Outcome

Wave = TypeVar("Wave")
Reply = TypeVar("Reply")


@dataclass
class Session:
    """`judged` holds the entrants in a call that brought a verdict, `matches` every presentation."""

    quality: Quality
    judge: SimulatedJudge
    rng: random.Random
    calls: int = 0
    answers: int = 0
    waves: int = 0
    judged: set[int] = field(default_factory=set)
    matches: list[Match] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)

    @property
    def n(self) -> int:
        return len(self.quality)

    def play(self, topology: Topology, *, both_orders: bool = False) -> Strengths:
        """Drives a topology of matches, shown in one order or in both. Every verdict is drawn afresh."""
        return self._drive(topology, lambda wave: [self._match(match, both_orders) for match in wave])

    def play_groups(self, topology: GroupTopology, winners: int) -> Strengths:
        """Drives a group tournament in which every contested group has that many winners."""
        return self._drive(topology, lambda wave: [self._winners(group, winners) for group in wave])

    def grade(self, criteria: int) -> Strengths:
        """Mean of binary criteria whose thresholds are drawn once for the group; one call per criterion."""
        thresholds = [self.rng.gauss(0.0, 1.0) for _ in range(criteria)]
        self.calls = self.answers = criteria * self.n
        self.waves = 1
        grades = [self.judge.grade(quality, thresholds, self.rng) for quality in self.quality]
        self.judged.update(entrant for entrant, grade in enumerate(grades) if grade is not None)
        return grades

    def _drive(
        self,
        topology: Generator[list[Wave], list[Reply], Strengths],
        answer: Callable[[list[Wave]], list[Reply]],
    ) -> Strengths:
        run = TopologyRun(topology)
        while run.wave is not None:
            self.waves += 1
            run.answer(answer(run.wave))
        return run.strengths

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
        self.calls += 1
        self.answers += 2
        self.matches.append(match)
        self.outcomes.append(outcome)
        if outcome is not None:
            self.judged.update(match)
        return outcome

    def _winners(self, group: list[int], winners: int) -> list[int] | None:
        order = self.judge.order(self.quality, group, self.rng)
        self.calls += 1
        self.answers += len(group)
        if order is None:
            return None
        self.judged.update(group)
        return order[:winners]
