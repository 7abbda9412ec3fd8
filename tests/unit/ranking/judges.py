"""Judges for tests, and the plainest driver: a topology against a function."""

import random
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import balanced
from scope_selfplay.ranking.matches import Match, Strengths, Topology
from scope_selfplay.ranking.topologies import (
    LiveLeaderboard,
    anchor,
    double_elimination,
    round_robin,
    single_elimination,
    swiss,
)

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Driven(NamedTuple):
    strengths: Strengths
    waves: list[list]

    @property
    def asked(self) -> list:
        return [item for wave in self.waves for item in wave]

    @property
    def calls(self) -> int:
        return len(self.asked)


def drive(
    topology: Generator[list[Asked], list[Answer], Strengths], judge: Callable[[Asked], Answer]
) -> Driven:
    waves: list[list[Asked]] = []
    try:
        wave = next(topology)
        while True:
            waves.append(list(wave))
            wave = topology.send([judge(item) for item in wave])
    except StopIteration as stop:
        return Driven(stop.value, waves)


def live(arrival: Sequence[int]) -> Topology:
    """The live tournament for a known order of arrival: a wave for every newcomer but the first."""
    board = LiveLeaderboard()
    for entrant in arrival:
        matches = board.join(entrant)
        outcomes = (yield matches) if matches else []
        for match, outcome in zip(matches, outcomes, strict=True):
            board.record(match, outcome)
    return board.strengths()


def qualities(n: int, seed: int) -> list[float]:
    rng = random.Random(1_000 * seed + n)
    return [rng.gauss(0.0, 1.0) for _ in range(n)]


def perfect(quality: Sequence[float]) -> Callable[[Match], Outcome]:
    """Half of the exact margin for the first, minus half for the second."""

    def judge(match: Match) -> Outcome:
        margin = quality[match.first] - quality[match.second]
        return Outcome(margin / 2, -margin / 2)

    return judge


def biased(quality: Sequence[float], bias: float, noise: float, seed: int) -> Callable[[Match], Outcome]:
    """Scores with Gaussian noise of their own, and a bonus for being shown first."""
    rng = random.Random(seed)
    return lambda match: Outcome(
        quality[match.first] + bias + rng.gauss(0.0, noise), quality[match.second] + rng.gauss(0.0, noise)
    )


def best_of(quality: Sequence[float], winners: int) -> Callable[[list[int]], list[int]]:
    return lambda group: sorted(group, key=lambda entrant: quality[entrant], reverse=True)[:winners]


def lower_number(match: Match) -> Outcome:
    """The lower entrant number always wins."""
    return Outcome(float(match.first < match.second), float(match.second < match.first))


def failing(judge: Callable[[Asked], Answer], share: float, seed: int) -> Callable[[Asked], Answer | None]:
    rng = random.Random(f"failing {seed}")
    return lambda asked: None if rng.random() < share else judge(asked)


class Unshuffled(random.Random):
    """A generator whose shuffle keeps the order."""

    def shuffle(self, x) -> None:  # type: ignore[no-untyped-def, override]
        pass


Design = Callable[[int, random.Random], Topology]
DESIGNS: dict[str, Design] = {
    "round_robin": lambda n, rng: round_robin(n),
    "anchor": lambda n, rng: anchor(n),
    "single_elimination": lambda n, rng: single_elimination(n),
    "double_elimination": double_elimination,
    "swiss": swiss,
    "live": lambda n, rng: live(rng.sample(range(n), n)),
    "balanced": lambda n, rng: balanced(n, 2 * (n - 1), rng),
}
