"""How fast one GPU is, for the simulation of a step: assumed for an H100, or measured by `make prove-gpu`.

Everything is for a model of 8.19 billion parameters (Qwen3-8B). A measurement of another size is scaled by it.
An engine at these rates runs in simulated time, with the library's queue and room.
"""

import heapq
import json
from bisect import insort
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.net.admission import TokenRoom

PARAMETERS = 8.19e9
PER_SECOND = ("prefill", "reference", "update")
"""Rates in tokens per second; the others are seconds."""


@dataclass(frozen=True)
class Rates:
    """`sources` says of a rate where it was measured; those that are not in it are assumed."""

    decode_step: float = 0.009
    """Seconds of one decoding step of an engine: reading the weights, and its driver."""
    cache_read: float = 6.5e-8
    """Seconds that every token in the cache of a running sequence adds to a step."""
    prefill: float = 30_000.0
    """Tokens read per second."""
    reference: float = 21_000.0
    """Tokens per second in a forward pass of the reference."""
    update: float = 5_300.0
    """Tokens per second forward, recomputed and back."""
    pass_floor: float = 0.25
    """Seconds of a pass, however few its tokens: gathering the weights and scattering the gradients."""
    transfer: float = 6.0
    """Seconds of a step in which the weights reach the engine."""
    sleep: float = 4.0
    """Seconds of a step in which an engine falls asleep and wakes up."""
    optimizer: float = 1.0
    """Seconds of the optimizer; ten times as many where its states are on the host."""
    other: float = 3.0
    """Seconds of a step for everything else."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> list[str]:
        """Every rate with where it comes from."""
        values = {name: value for name, value in vars(self).items() if name != "sources"}
        return [
            f"{name:12} {value:10g}  {self.sources.get(name, 'assumed')}" for name, value in values.items()
        ]


def read_rates(file: Path | None) -> Rates:
    """The assumed rates, with those in their place that a file of results has.

    It has a JSON object a line, as `make prove-gpu` writes it: `rates` by name, measured with a model of so many
    `parameters` (8.19 billion when left out). Parts that failed or were skipped give none.
    """
    rates = Rates()
    if file is None:
        return rates
    for line in file.read_text(encoding="utf-8").splitlines():
        found = _rates_of(json.loads(line)) if line.strip() else {}
        known = {name: value for name, value in found.items() if name in vars(rates) and name != "sources"}
        if known:
            where = f"measured: {json.loads(line).get('machine', file.name)}"
            sources = {**rates.sources, **dict.fromkeys(known, where)}
            rates = replace(rates, **known, sources=sources)
    return rates


def _rates_of(line: Mapping[str, Any]) -> dict[str, float]:
    if line.get("status", "ok") != "ok":
        return {}
    scale = PARAMETERS / float(line.get("parameters") or PARAMETERS)
    return {
        name: value / scale if name in PER_SECOND else value * scale
        for name, value in line.get("rates", {}).items()
    }


class Turn(NamedTuple):
    """`read` are tokens that were not there in the turn before; `kept` of the others are what the cache may still have.

    `pause`: seconds until the next turn can begin.
    """

    prompt: int
    kept: int
    tokens: int
    pause: float = 0.0


class Episode(NamedTuple):
    begin: float
    turns: Sequence[Turn]


@dataclass(frozen=True)
class EngineSettings:
    """One engine on a GPU, which holds `cache` tokens."""

    rates: Rates
    cache: int
    most_running: int = 256
    longest_turn: int = 2048


class Served(NamedTuple):
    """When each episode ended; the mean number of sequences that ran."""

    ends: list[float]
    running: float


def serve(episodes: Sequence[Episode], settings: EngineSettings) -> Served:
    return _Engine(episodes, settings).run()


class _Engine:
    def __init__(self, episodes: Sequence[Episode], settings: EngineSettings) -> None:
        self._episodes, self._settings = episodes, settings
        self._ends = [0.0] * len(episodes)
        self._queue: list[tuple[int, int]] = []
        self._room = TokenRoom(settings.cache)
        self._coming = [(episode.begin, number, 0) for number, episode in enumerate(episodes)]
        heapq.heapify(self._coming)
        # Episode -> (turn, tokens still to write, tokens in the cache); finished contexts, oldest first.
        self._running: dict[int, list[int]] = {}
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._now = self._busy = self._work = 0.0

    def run(self) -> Served:
        while self._coming or self._queue or self._running:
            self._arrive()
            self._admit()
            if self._running:
                self._decode()
            elif self._coming:
                self._now = max(self._now, self._coming[0][0])
        return Served(self._ends, self._work / self._busy if self._busy else 0.0)

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self._now:
            _, number, turn = heapq.heappop(self._coming)
            insort(self._queue, (number, turn), key=lambda waiting: not waiting[1])

    def _admit(self) -> None:
        reading = 0
        while self._queue and len(self._running) < self._settings.most_running:
            number, place = self._queue[0]
            turn = self._episodes[number].turns[place]
            if not self._room.fits(turn.prompt, self._settings.longest_turn):
                break
            self._queue.pop(0)
            self._room.enter(str(number), turn.prompt, self._settings.longest_turn)
            found = turn.kept if self._kept.pop(number, 0) or not place else 0
            reading += turn.prompt - found
            self._running[number] = [place, turn.tokens, turn.prompt]
            self._make_room()
        self._now += reading / self._settings.rates.prefill

    def _make_room(self) -> None:
        """Contexts of episodes that wait for a search stay as long as there is room."""
        held = sum(context for _, _, context in self._running.values()) + sum(self._kept.values())
        while self._kept and held > self._settings.cache:
            held -= self._kept.popitem(last=False)[1]

    def _decode(self) -> None:
        rates, context = self._settings.rates, sum(held for _, _, held in self._running.values())
        step = rates.decode_step + rates.cache_read * context
        steps = min(left for _, left, _ in self._running.values())
        if self._coming:
            steps = min(steps, max(1, int((self._coming[0][0] - self._now) / step)))
        self._now += steps * step
        self._busy += steps * step
        self._work += steps * step * len(self._running)
        for number, state in list(self._running.items()):
            state[1] -= steps
            state[2] += steps
            if not state[1]:
                self._end(number, *state)

    def _end(self, number: int, place: int, _: int, context: int) -> None:
        turns = self._episodes[number].turns
        del self._running[number]
        self._room.leave(str(number), turns[place].tokens)
        if place + 1 == len(turns):
            self._ends[number] = self._now
            return
        self._kept[number] = context
        self._make_room()
        heapq.heappush(self._coming, (self._now + turns[place].pause, number, place + 1))
