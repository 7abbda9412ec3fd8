"""An engine in simulated time: what it admits, what it keeps in its cache, when every request ends.

Its queue and its room are the library's own (`inference.admission`). Between two events all running sequences decode
side by side; a step of the engine takes as long as reading the weights and the cache takes. What is admitted is read
first, which stops the others. What an episode said before is found again unless others needed the room.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.step_rates import Rates
from scope_selfplay.inference.admission import TokenRoom, TurnQueue


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
    """One engine over `gpus`, which holds `cache` tokens."""

    rates: Rates
    cache: int
    gpus: int = 1
    most_running: int = 256
    longest_turn: int = 2048


class Served(NamedTuple):
    """When each episode ended; the mean number of sequences that ran; tokens read that were not in the cache."""

    ends: list[float]
    running: float
    read: int


def serve(episodes: Sequence[Episode], settings: EngineSettings) -> Served:
    return _Engine(episodes, settings).run()


class _Engine:
    def __init__(self, episodes: Sequence[Episode], settings: EngineSettings) -> None:
        self._episodes, self._settings = episodes, settings
        self._ends = [0.0] * len(episodes)
        self._queue: TurnQueue[tuple[int, int]] = TurnQueue()
        self._room = TokenRoom(settings.cache)
        self._coming = [(episode.begin, number, 0) for number, episode in enumerate(episodes)]
        heapq.heapify(self._coming)
        # Episode -> (turn, tokens still to write, tokens in the cache); finished contexts, oldest first.
        self._running: dict[int, list[int]] = {}
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._now = self._busy = self._work = 0.0
        self._read = 0

    def run(self) -> Served:
        while self._coming or self._queue or self._running:
            self._arrive()
            self._admit()
            if self._running:
                self._decode()
            elif self._coming:
                self._now = max(self._now, self._coming[0][0])
        return Served(self._ends, self._work / self._busy if self._busy else 0.0, self._read)

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self._now:
            _, number, turn = heapq.heappop(self._coming)
            self._queue.put((number, turn), turn)

    def _admit(self) -> None:
        reading = 0
        while self._queue and len(self._running) < self._settings.most_running:
            number, place = self._queue.next()
            turn = self._episodes[number].turns[place]
            if not self._room.fits(turn.prompt, self._settings.longest_turn):
                break
            self._queue.take()
            self._room.enter(str(number), turn.prompt, self._settings.longest_turn)
            found = turn.kept if self._kept.pop(number, 0) or not place else 0
            reading += turn.prompt - found
            self._running[number] = [place, turn.tokens, turn.prompt]
            self._make_room()
        self._read += reading
        self._now += reading / (self._settings.rates.prefill * self._settings.gpus)

    def _make_room(self) -> None:
        """Contexts of episodes that wait for a search stay as long as there is room."""
        held = sum(context for _, _, context in self._running.values()) + sum(self._kept.values())
        while self._kept and held > self._settings.cache:
            held -= self._kept.popitem(last=False)[1]

    def _decode(self) -> None:
        rates, gpus = self._settings.rates, self._settings.gpus
        context = sum(held for _, _, held in self._running.values())
        step = (rates.decode_step + rates.cache_read * context) / gpus + (rates.parallel if gpus > 1 else 0)
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
