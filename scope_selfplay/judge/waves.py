"""Lets calls through in waves: at most `limit` at once, those with a common beginning next to each other.

Everything that waits when a wave begins belongs to it and goes in the order of its text, so that an engine
with a prefix cache meets the K criteria of one answer, and the answers to one task, one after the other. Who
comes later belongs to the next wave: nobody is overtaken for ever.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AdmissionGate:
    """`limit` shrinks when the endpoint asks for a pause and grows back call by call."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._limit = float(limit)
        self._inside = 0
        self._wave: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._next: list[tuple[str, asyncio.Future[None]]] = []
        self._scheduled = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def inside(self) -> int:
        return self._inside

    @asynccontextmanager
    async def turn(self, text: str) -> AsyncIterator[None]:
        """Waits for this call's turn; `text` decides its place in its wave."""
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        self._next.append((text, admitted))
        if not self._scheduled:
            # One turn of the loop later, so that calls which are made together make one wave.
            self._scheduled = True
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
        if self._limit < self._most:
            self._limit = min(self._most, self._limit + 1 / self._limit)

    def _open(self) -> None:
        self._scheduled = False
        self._admit()

    def _leave(self) -> None:
        self._inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self._inside < self.limit:
            if not self._wave:
                if not self._next:
                    return
                self._wave = deque(sorted(self._next, key=lambda waiting: waiting[0]))
                self._next = []
            _, admitted = self._wave.popleft()
            if not admitted.done():
                self._inside += 1
                admitted.set_result(None)
