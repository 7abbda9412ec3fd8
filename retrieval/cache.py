"""Remembers answers and joins equal queries in flight: a GRPO group asks the same thing several times at
once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from retrieval.hits import Hit

Search = Callable[[str, int], "asyncio.Future[list[Hit]]"]


class Counts(NamedTuple):
    """Lookups since the start, by where the answer came from."""

    remembered: int
    joined: int
    searched: int


class AnswerCache:
    """The `capacity` answers used last, by query and topk. 0 remembers nothing but still joins."""

    def __init__(self, search: Search, capacity: int) -> None:
        self._search = search
        self._capacity = capacity
        self._answers: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._in_flight: dict[tuple[str, int], asyncio.Future[list[Hit]]] = {}
        self.counts = Counts(0, 0, 0)

    def missing(self, queries: Iterable[str], topk: int) -> int:
        """How many searches these queries would start."""
        keys = {(query, topk) for query in queries}
        return sum(key not in self._answers and key not in self._in_flight for key in keys)

    def ask(self, query: str, topk: int) -> "asyncio.Future[list[Hit]]":
        """The answer, now or later. Shared: await it through `asyncio.shield`, or one caller cancels the
        others.

        A failed search is not remembered. Raises what `search` raises on the spot (a full queue).

        """
        key = (query, topk)
        remembered, joined, searched = self.counts
        if (answer := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            self.counts = Counts(remembered + 1, joined, searched)
            done: asyncio.Future[list[Hit]] = asyncio.get_running_loop().create_future()
            done.set_result(answer)
            return done
        if (pending := self._in_flight.get(key)) is not None:
            self.counts = Counts(remembered, joined + 1, searched)
            return pending
        future = self._search(query, topk)
        self.counts = Counts(remembered, joined, searched + 1)
        self._in_flight[key] = future
        future.add_done_callback(lambda done: self._settle(key, done))
        return future

    def _settle(self, key: tuple[str, int], future: "asyncio.Future[list[Hit]]") -> None:
        del self._in_flight[key]
        if future.cancelled() or future.exception() is not None or not self._capacity:
            return
        self._answers[key] = future.result()
        if len(self._answers) > self._capacity:
            self._answers.popitem(last=False)
