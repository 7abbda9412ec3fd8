"""Gathers single queries into batches: encoding a batch of 32 costs a fraction of encoding 32 times one.

A free engine takes what waits at once. Only right after a batch of several, whose clients are about to come back, it
waits up to `linger` seconds for as many again; a lone client never waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from retrieval.hits import Hit


class SearchEngine(Protocol):
    slots: int
    """Batches that it can work on at once."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Raises SearchError."""

    async def close(self) -> None: ...


class Overloaded(Exception):
    """The queue is full; `retry_after` seconds is when it should have room."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


Answer = asyncio.Future[list[Hit]]


class Batcher:
    """A request is accepted while fewer than `capacity` queries wait; `on_batch` is called with every batch's size."""

    def __init__(
        self,
        engine: SearchEngine,
        *,
        max_batch: int = 32,
        linger: float = 0.005,
        capacity: int = 4096,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.engine = engine
        self._max_batch = max_batch
        self._linger = linger
        self._capacity = capacity
        self._on_batch = on_batch
        self._queue: dict[Answer, tuple[str, int]] = {}
        """Query and topk of what waits, oldest first, by its answer."""
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_size = 1
        self._last_end = 0.0
        self._seconds_per_query = 0.01
        """Thought until some searches have been measured."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether a request with searches has to come back later.

        One place is enough for the largest request: beside steady single queries it would never find as many
        places as it has queries. So up to `capacity` - 1 queries of others and one request wait.
        """
        return len(self._queue) >= self._capacity

    def overloaded(self) -> Overloaded:
        missing = len(self._queue) - self._capacity + 1
        return Overloaded(max(0.1, missing * self._seconds_per_query / self.engine.slots))

    def submit(self, query: str, topk: int) -> Answer:
        """The future raises SearchError; cancelling it takes a waiting query out of the queue. The caller has checked
        `is_full` for the whole request.
        """
        answer: Answer = asyncio.get_running_loop().create_future()
        self._queue[answer] = query, topk
        answer.add_done_callback(lambda done: self._queue.pop(done, None))
        self._pump()
        return answer

    async def drain(self) -> None:
        """Wait until nothing waits and nothing runs."""
        while self._running or self._queue:
            await asyncio.gather(*self._running, return_exceptions=True)
            await asyncio.sleep(0 if self._running else self._linger)

    def _pump(self) -> None:
        while self._queue and len(self._running) < self.engine.slots:
            left = self._linger - (asyncio.get_running_loop().time() - self._last_end)
            if left > 0 and len(self._queue) < min(self._last_size, self._max_batch):
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(left, self._wake)
                return
            batch, topk = self._take()
            if batch:
                task = asyncio.create_task(self._run(batch, topk))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                task.add_done_callback(lambda _: self._pump())

    def _wake(self) -> None:
        self._timer = None
        self._pump()

    def _take(self) -> tuple[dict[Answer, str], int]:
        """The oldest query and, in order, others with its topk; those that nobody awaits are dropped."""
        batch: dict[Answer, str] = {}
        abandoned: list[Answer] = []
        batch_topk = 0
        for answer, (query, topk) in self._queue.items():
            if len(batch) == self._max_batch:
                break
            if answer.done():
                abandoned.append(answer)
            # One topk per batch: an approximate index may rank differently for another one.
            elif not batch or topk == batch_topk:
                batch[answer], batch_topk = query, topk
        for answer in (*batch, *abandoned):
            del self._queue[answer]
        return batch, batch_topk

    async def _run(self, batch: dict[Answer, str], topk: int) -> None:
        self._on_batch(len(batch))
        start = asyncio.get_running_loop().time()
        try:
            found = await self.engine.search(list(batch.values()), topk)
        except Exception as error:  # noqa: BLE001 - whatever it was, every waiting client gets it
            for answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        finally:
            self._last_end = asyncio.get_running_loop().time()
            self._last_size = len(batch)
        # Remembered for Retry-After, smoothed over about ten batches.
        self._seconds_per_query += 0.1 * ((self._last_end - start) / len(batch) - self._seconds_per_query)
        for answer, hits in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(hits)
