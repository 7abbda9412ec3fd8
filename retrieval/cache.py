"""Remembers answers and joins equal queries in flight: a GRPO group asks the same thing several times at
once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from retrieval.hits import Hit

Answer = asyncio.Future[list[Hit]]
Search = Callable[[str, int], Answer]


class Counts(NamedTuple):
    """Lookups since the start, by where the answer came from."""

    remembered: int
    joined: int
    searched: int


class InFlight(NamedTuple):
    """A search under way and the callers that wait for it."""

    search: Answer
    waiting: set[Answer]


class AnswerCache:
    """The `capacity` answers used last, by query and topk. 0 remembers nothing but still joins."""

    def __init__(self, search: Search, capacity: int) -> None:
        self._search = search
        self._capacity = capacity
        self._answers: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._in_flight: dict[tuple[str, int], InFlight] = {}
        self.counts = Counts(0, 0, 0)

    def is_missing(self, queries: Iterable[str], topk: int) -> bool:
        """Whether one of these queries would start a search."""
        keys = ((query, topk) for query in queries)
        return any(key not in self._answers and key not in self._in_flight for key in keys)

    def ask(self, query: str, topk: int) -> Answer:
        """The answer, now or later, for this caller alone: who cancels it leaves the others waiting, and the
        last one that leaves cancels the search.

        A failed search is not remembered.
        """
        key = (query, topk)
        remembered, joined, searched = self.counts
        answer: Answer = asyncio.get_running_loop().create_future()
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            self.counts = Counts(remembered + 1, joined, searched)
            answer.set_result(known)
            return answer
        under_way = self._in_flight.get(key)
        if under_way is None:
            under_way = self._begin(key)
            self.counts = Counts(remembered, joined, searched + 1)
        else:
            self.counts = Counts(remembered, joined + 1, searched)
        under_way.waiting.add(answer)
        answer.add_done_callback(lambda done: self._leave(key, under_way, done))
        return answer

    def _begin(self, key: tuple[str, int]) -> InFlight:
        under_way = InFlight(self._search(*key), set())
        self._in_flight[key] = under_way
        under_way.search.add_done_callback(lambda done: self._settle(key, under_way))
        return under_way

    def _leave(self, key: tuple[str, int], under_way: InFlight, answer: Answer) -> None:
        under_way.waiting.discard(answer)
        if not under_way.waiting and not under_way.search.done():
            self._forget(key, under_way)
            under_way.search.cancel()

    def _settle(self, key: tuple[str, int], under_way: InFlight) -> None:
        self._forget(key, under_way)
        if under_way.search.cancelled():
            for answer in under_way.waiting:
                answer.cancel()
            return
        error = under_way.search.exception()
        for answer in under_way.waiting:
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(under_way.search.result())
        if error is None and self._capacity:
            self._answers[key] = under_way.search.result()
            if len(self._answers) > self._capacity:
                self._answers.popitem(last=False)

    def _forget(self, key: tuple[str, int], under_way: InFlight) -> None:
        """A later search for the same key may be under way already: that one stays."""
        if self._in_flight.get(key) is under_way:
            del self._in_flight[key]
