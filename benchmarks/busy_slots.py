"""How full an engine is kept: its slots, how many of them were busy and when."""

import asyncio
import math
import random
from itertools import pairwise
from typing import NamedTuple


class Load(NamedTuple):
    """`mean` and `spread` of a turn's time in seconds."""

    mean: float
    spread: float
    slots: int


class BusySlots:
    """Serves at most `slots` at once, each for a log-normal time: most are quick, a few take long."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._free = asyncio.Semaphore(load.slots)
        self._busy = 0
        self._changes: list[tuple[float, int]] = [(0.0, 0)]

    async def serve(self, rng: random.Random) -> None:
        async with self._free:
            self._change(1)
            mu = math.log(self._load.mean) - self._load.spread**2 / 2
            await asyncio.sleep(rng.lognormvariate(mu, self._load.spread))
            self._change(-1)

    def _change(self, by: int) -> None:
        self._busy += by
        self._changes.append((asyncio.get_running_loop().time(), self._busy))

    @property
    def begun(self) -> int:
        return len(self._rises())

    @property
    def seconds(self) -> float:
        return self._changes[-1][0] - self._changes[1][0]

    def used(self) -> float:
        """Of all slot-seconds from when all slots first were busy until the last turn began, those that were busy."""
        full = next((row for row, (_, busy) in enumerate(self._changes) if busy == self._load.slots), 0)
        window = self._changes[full : self._rises()[-1] + 1]
        spans = [(later[0] - now[0], now[1]) for now, later in pairwise(window)]
        return sum(span * busy for span, busy in spans) / (self._load.slots * sum(span for span, _ in spans))

    def _rises(self) -> list[int]:
        rows = range(1, len(self._changes))
        return [row for row in rows if self._changes[row][1] > self._changes[row - 1][1]]
