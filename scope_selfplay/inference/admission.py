"""Who is served next where more is asked for than is served at once: turns of episodes that are under way come first.

First come, first served would begin every episode of a step before it ended one: all take their first turn, then all
their second. An engine keeps the keys and values of what it read last, so each turn would find those of its own episode
gone; and no group would be whole, and judged, before the end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """What waits: later turns before first ones, otherwise in the order of arrival."""

    def __init__(self) -> None:
        self._later: deque[T] = deque()
        self._first: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._later) + len(self._first)

    def __iter__(self) -> Iterator[T]:
        yield from self._later
        yield from self._first

    def put(self, item: T, turn: int) -> None:
        (self._later if turn else self._first).append(item)

    def next(self) -> T:
        """What `take` would take. Raises IndexError where nothing waits."""
        return (self._later or self._first)[0]

    def take(self) -> T:
        return (self._later or self._first).popleft()

    def drop(self, gone: Callable[[T], bool]) -> None:
        """Forget those that are gone."""
        self._later = deque(item for item in self._later if not gone(item))
        self._first = deque(item for item in self._first if not gone(item))

    def clear(self) -> None:
        self._later.clear()
        self._first.clear()


class TurnGate:
    """Lets `limit` turns through at once, on one event loop; the rest wait in a TurnQueue."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: TurnQueue[asyncio.Future[None]] = TurnQueue()

    @asynccontextmanager
    async def turn(self, number: int) -> AsyncIterator[None]:
        """The `number` of an episode's turn, from 0."""
        if not self._free:
            # Whoever leaves hands its place on, so nobody overtakes those who wait.
            place = asyncio.get_running_loop().create_future()
            self._waiting.put(place, number)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._leave()
                raise
        else:
            self._free -= 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while self._waiting:
            place = self._waiting.take()
            # Those who stopped waiting are passed over here: looking for them at every turn would read all that wait.
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


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
