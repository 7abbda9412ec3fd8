import asyncio
from collections.abc import Sequence

import pytest

from retrieval.service import Batcher
from retrieval.wire import Hit
from scope_selfplay.base.errors import SearchError


class HeldEngine:
    """Answers a query with its own length as the row; every batch waits until the test lets it go."""

    def __init__(self, slots: int = 1, seconds: float | None = 0.0) -> None:
        self.slots = slots
        self.batches: list[list[str]] = []
        self.topks: list[int] = []
        self.go = asyncio.Event()
        self._seconds = seconds

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        self.topks.append(topk)
        await (self.go.wait() if self._seconds is None else asyncio.sleep(self._seconds))
        if "poison" in queries:
            raise SearchError("no")
        return [[Hit(len(query), 1.0)] for query in queries]

    async def close(self) -> None:
        return


async def test_a_lone_query_is_searched_at_once() -> None:
    engine = HeldEngine()
    batcher = Batcher(engine, linger=10.0)
    assert await asyncio.wait_for(batcher.submit("abc", 1), 1) == [Hit(3, 1.0)]


async def test_what_arrives_while_the_engine_is_busy_becomes_one_batch_of_at_most_max_batch() -> None:
    engine = HeldEngine(seconds=None)
    batcher = Batcher(engine, max_batch=4, linger=0.0)
    answers = [batcher.submit("x" * length, 1) for length in range(1, 11)]
    await asyncio.sleep(0)
    engine.go.set()
    assert [hits[0].row for hits in await asyncio.gather(*answers)] == list(range(1, 11))
    assert list(map(len, engine.batches)) == [1, 4, 4, 1]


async def test_after_a_batch_of_several_the_next_one_waits_for_as_many_or_for_the_linger() -> None:
    engine = HeldEngine(seconds=None)
    batcher = Batcher(engine, linger=0.05)
    first = [batcher.submit(str(place), 1) for place in range(5)]
    await asyncio.sleep(0)
    engine.go.set()
    await asyncio.gather(*first)
    second = [batcher.submit(f"again {place}", 1) for place in range(3)]
    assert len(engine.batches) == 2
    await asyncio.gather(*second)
    assert list(map(len, engine.batches)) == [1, 4, 3]


async def test_queries_of_different_topk_are_never_searched_together() -> None:
    engine = HeldEngine(seconds=None)
    batcher = Batcher(engine, linger=0.0)
    answers = [batcher.submit(f"q{place}", 1 + place % 2) for place in range(6)]
    await asyncio.sleep(0)
    engine.go.set()
    await asyncio.gather(*answers)
    assert engine.batches == [["q0"], ["q1", "q3", "q5"], ["q2", "q4"]]
    assert engine.topks == [1, 2, 1]


async def test_the_queue_is_full_at_its_capacity_and_says_when_it_has_room() -> None:
    engine = HeldEngine(seconds=None)
    batcher = Batcher(engine, capacity=3)
    answers = [batcher.submit("runs", 1)]
    await asyncio.sleep(0)
    for place in range(3):
        assert not batcher.is_full
        answers.append(batcher.submit(str(place), 1))
    assert batcher.is_full
    assert batcher.overloaded().retry_after == 0.1
    engine.go.set()
    await asyncio.gather(*answers)
    assert not batcher.is_full


async def test_a_failing_batch_fails_its_own_queries_only() -> None:
    batcher = Batcher(HeldEngine())
    with pytest.raises(SearchError):
        await batcher.submit("poison", 1)
    assert await batcher.submit("fine", 1) == [Hit(4, 1.0)]


async def test_a_query_that_nobody_awaits_any_more_leaves_its_place_in_the_queue() -> None:
    engine = HeldEngine(seconds=None)
    batcher = Batcher(engine, capacity=2)
    running = batcher.submit("running", 1)
    await asyncio.sleep(0)
    gone = [batcher.submit(str(place), 1) for place in range(2)]
    assert batcher.is_full
    for answer in gone:
        answer.cancel()
    await asyncio.sleep(0)
    assert (batcher.is_full, batcher.waiting) == (False, 0)
    engine.go.set()
    await running
    assert engine.batches == [["running"]]


async def test_two_slots_work_at_the_same_time() -> None:
    engine = HeldEngine(slots=2, seconds=None)
    batcher = Batcher(engine, linger=0.0)
    answers = [batcher.submit("a", 1), batcher.submit("b", 1)]
    await asyncio.sleep(0)
    assert engine.batches == [["a"], ["b"]]
    engine.go.set()
    await asyncio.gather(*answers)
