"""Who is served next where more is asked for than is served at once: turns of episodes that are under way come first.

First come, first served would begin every episode of a step before it ended one: all take their first turn, then all
their second. An engine keeps the keys and values of what it read last, so each turn would find those of its own episode
gone; and no group would be whole, and judged, before the end.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class TokenRoom:
    """How many turns an engine's cache of `capacity` tokens (None: not known) holds at once.

    A turn takes its prompt and as many tokens as the turns so far had on average; before the first has ended, a
    quarter of what it may have. It need not be exact: an engine drops what it cannot hold, and computes it again.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._held: dict[str, int] = {}
        self._turns = 0
        self._sampled = 0

    def fits(self, prompt: int, most: int) -> bool:
        """Whether a turn joins those that run; the only one always does."""
        if self.capacity is None or not self._held:
            return True
        return sum(self._held.values()) + prompt + self._expected(most) <= self.capacity

    def enter(self, name: str, prompt: int, most: int) -> None:
        """`most`: tokens that the turn may have."""
        self._held[name] = prompt + self._expected(most)

    def leave(self, name: str, sampled: int | None = None) -> None:
        """`sampled` tokens; None for a turn that did not end by itself."""
        self._held.pop(name, None)
        if sampled is not None:
            self._turns, self._sampled = self._turns + 1, self._sampled + sampled

    def clear(self) -> None:
        """Nothing runs any more; what is known of turns stays."""
        self._held.clear()

    def _expected(self, most: int) -> int:
        return min(most, self._sampled // self._turns if self._turns else max(1, most // 4))


class Admission:
    """Lets `limit` calls through at once: later turns first, those with a common beginning next to each other.

    Calls that wait when a batch begins belong to it and go in the
    order of their text, so that an engine with a prefix cache gets the K criteria of one answer, and the answers to one
    task, one after the other. Later calls belong to the next batch, so no call waits for ever. `limit` shrinks when a
    server asks for a pause and grows back call by call. For one event loop.
    """

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._limit = float(limit)
        self.inside = 0
        self._batch = 0
        self._numbers = count()
        self._waiting: list[tuple[bool, int, str, int, asyncio.Future[None]]] = []
        self._is_opening = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def turn(self, text: str = "", *, number: int = 0) -> AsyncIterator[None]:
        """Waits for this call's turn; `number` is that of an episode's turn, from 0."""
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        place = (number == 0, self._batch + 1, text, next(self._numbers), admitted)
        heapq.heappush(self._waiting, place)
        if not self._is_opening:
            # One turn of the loop later, so that calls which are made together make one batch.
            self._is_opening = True
            loop.call_soon(self._open)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave()
            raise
        try:
            yield
        finally:
            self._leave()

    def shrink(self) -> None:
        self._limit = max(1.0, self._limit / 2)

    def grow(self) -> None:
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def _open(self) -> None:
        self._is_opening = False
        self._admit()

    def _leave(self) -> None:
        self.inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.inside < self.limit:
            _, batch, _, _, admitted = heapq.heappop(self._waiting)
            self._batch = max(self._batch, batch)
            if not admitted.done():
                self.inside += 1
                admitted.set_result(None)
