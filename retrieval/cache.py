"""Remembers answers and joins equal queries in flight: a GRPO group asks the same thing several times at once."""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from retrieval.batching import Answer
from retrieval.hits import Hit

ANSWER_BYTES = 500
"""What an answer may take on average; one of three hits takes 240 bytes, one of a hundred 1,800."""
HIT_BYTES = 16
ENTRY_BYTES = 190
"""What an answer without hits takes, its key and its place in the order of use included."""
Search = Callable[[str, int], Answer]


class LookupCounts(NamedTuple):
    """Lookups since the start, by where the answer came from."""

    remembered: int
    joined: int
    searched: int


class InFlight(NamedTuple):
    """A search under way and the callers that wait for it."""

    search: Answer
    waiting: set[Answer]


class AnswerCache:
    """The answers used last, by query and topk: `capacity` of them, in at most ANSWER_BYTES each on average, so
    that long lists of hits leave fewer. 0 remembers nothing but still joins.
    """

    def __init__(self, search: Search, capacity: int) -> None:
        self._search = search
        self._capacity = capacity
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._in_flight: dict[bytes, InFlight] = {}
        self.counts = LookupCounts(0, 0, 0)
        self.bytes = 0
        """What the remembered answers take."""

    def is_missing(self, queries: Iterable[str], topk: int) -> bool:
        """Whether one of these queries would start a search."""
        keys = (_key(query, topk) for query in queries)
        return any(key not in self._answers and key not in self._in_flight for key in keys)

    def ask(self, query: str, topk: int) -> Answer:
        """The answer, now or later, for this caller alone: cancelling it leaves the others waiting, and when
        the last of them is cancelled, so is the search.

        A failed search is not remembered.
        """
        key = _key(query, topk)
        remembered, joined, searched = self.counts
        answer: Answer = asyncio.get_running_loop().create_future()
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            self.counts = LookupCounts(remembered + 1, joined, searched)
            count = len(known) // HIT_BYTES
            values = struct.unpack(f"<{count}q{count}d", known)
            answer.set_result(list(map(Hit, values[:count], values[count:])))
            return answer
        under_way = self._in_flight.get(key)
        if under_way is None:
            under_way = self._in_flight[key] = InFlight(self._search(query, topk), set())
            under_way.search.add_done_callback(lambda _: self._settle(key, under_way))
            self.counts = LookupCounts(remembered, joined, searched + 1)
        else:
            self.counts = LookupCounts(remembered, joined + 1, searched)
        under_way.waiting.add(answer)
        answer.add_done_callback(lambda done: self._leave(key, under_way, done))
        return answer

    def _leave(self, key: bytes, under_way: InFlight, answer: Answer) -> None:
        under_way.waiting.discard(answer)
        if not under_way.waiting and not under_way.search.done():
            self._forget(key, under_way)
            under_way.search.cancel()

    def _settle(self, key: bytes, under_way: InFlight) -> None:
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
            self._remember(key, under_way.search.result())

    def _remember(self, key: bytes, hits: Sequence[Hit]) -> None:
        # Rows, then scores, in 16 bytes a hit instead of 140.
        packed = struct.pack(
            f"<{len(hits)}q{len(hits)}d", *(hit.row for hit in hits), *(hit.score for hit in hits)
        )
        self._answers[key] = packed
        self.bytes += ENTRY_BYTES + len(packed)
        while len(self._answers) > self._capacity or self.bytes > self._capacity * ANSWER_BYTES:
            _, oldest = self._answers.popitem(last=False)
            self.bytes -= ENTRY_BYTES + len(oldest)

    def _forget(self, key: bytes, under_way: InFlight) -> None:
        """A later search for the same key may be under way already: that one stays."""
        if self._in_flight.get(key) is under_way:
            del self._in_flight[key]


def _key(query: str, topk: int) -> bytes:
    """A digest: queries may be long."""
    return blake2b(b"%d %b" % (topk, query.encode("utf-8", "surrogatepass")), digest_size=16).digest()
