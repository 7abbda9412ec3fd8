import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.build import build_bm25
from retrieval.service import AnswerCache, Batcher, SearchService, ServiceSettings
from retrieval.wire import Hit, Retrieval, WireError
from scope_selfplay.base.errors import SearchError
from scope_selfplay.base.values import Document


class HeldEngine:
    """Answers a query with its own length as the row, unless told; every batch waits until the test lets it go."""

    slots = 1

    def __init__(self, row: Callable[[str], int] = len) -> None:
        self._row = row
        self.batches: list[tuple[list[str], int]] = []
        self.go = asyncio.Event()

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.batches.append((list(queries), topk))
        await self.go.wait()
        if "poison" in queries:
            raise SearchError("no")
        return [[Hit(self._row(query), 1.0)] for query in queries]

    async def close(self) -> None:
        return


async def test_a_lone_query_is_searched_at_once_and_a_failing_batch_fails_its_own_queries_only() -> None:
    engine = HeldEngine()
    engine.go.set()
    batcher = Batcher(engine, linger=600.0)
    with pytest.raises(SearchError):
        await asyncio.wait_for(batcher.submit("poison", 1), 60)
    assert await asyncio.wait_for(batcher.submit("fine", 1), 60) == [Hit(4, 1.0)]


async def test_what_arrives_while_the_engine_is_busy_becomes_one_batch_of_at_most_max_batch() -> None:
    engine = HeldEngine()
    batcher = Batcher(engine, max_batch=4, linger=0.0)
    answers = [batcher.submit("x" * length, 1) for length in range(1, 11)]
    await asyncio.sleep(0)
    engine.go.set()
    assert [hits[0].row for hits in await asyncio.gather(*answers)] == list(range(1, 11))
    assert [len(queries) for queries, _ in engine.batches] == [1, 4, 4, 1]


async def test_queries_of_different_topk_are_never_searched_together() -> None:
    engine = HeldEngine()
    batcher = Batcher(engine, linger=0.0)
    answers = [batcher.submit(f"q{place}", 1 + place % 2) for place in range(6)]
    await asyncio.sleep(0)
    engine.go.set()
    await asyncio.gather(*answers)
    assert engine.batches == [(["q0"], 1), (["q1", "q3", "q5"], 2), (["q2", "q4"], 1)]


async def test_a_full_queue_says_when_it_has_room_and_a_query_that_nobody_awaits_leaves_its_place() -> None:
    engine = HeldEngine()
    batcher = Batcher(engine, capacity=3)
    running = batcher.submit("running", 1)
    await asyncio.sleep(0)
    gone = []
    for place in range(3):
        assert not batcher.is_full
        gone.append(batcher.submit(str(place), 1))
    assert batcher.is_full and batcher.overloaded().retry_after == 0.1
    for answer in gone:
        answer.cancel()
    await asyncio.sleep(0)
    assert (batcher.is_full, batcher.waiting) == (False, 0)
    engine.go.set()
    await running
    assert engine.batches == [(["running"], 1)]


async def test_a_response_that_would_be_too_large_is_refused_before_a_passage_is_read(
    tmp_path: Path, coast: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_bm25(coast, tmp_path)
    service = SearchService(ServiceSettings(folder=tmp_path, workers=0))
    await service.load()
    monkeypatch.setattr("retrieval.service.MAX_RESPONSE", 99)
    with pytest.raises(WireError, match="more than 99 bytes: ask for fewer queries") as refused:
        await service.answer(Retrieval(["Aldmoor"], 3, return_scores=True))
    assert refused.value.status == 413
    await service.close()


Answer = asyncio.Future[list[Hit]]


class Searches:
    """Counts the searches and leaves their answers to the test."""

    def __init__(self) -> None:
        self.pending: dict[tuple[str, int], Answer] = {}
        self.count = 0

    def __call__(self, query: str, topk: int) -> Answer:
        self.count += 1
        self.pending[query, topk] = asyncio.get_running_loop().create_future()
        return self.pending[query, topk]


async def test_equal_queries_share_one_search_and_its_answer_is_remembered_for_their_topk() -> None:
    searches, counts = Searches(), Counter[str]()
    cache = AnswerCache(searches, 10, lambda answer: counts.update([answer]))
    answers = [cache.ask("same", 3) for _ in range(8)]
    assert not cache.is_missing(["same"], 3) and cache.is_missing(["same", "new"], 3)
    searches.pending["same", 3].set_result([Hit(1, 0.5)])
    assert await asyncio.gather(*answers) == [[Hit(1, 0.5)]] * 8
    assert (searches.count, counts) == (1, {"joined": 7, "searched": 1})
    assert cache.ask("same", 3).done() and not cache.ask("same", 4).done()


async def remember(cache: AnswerCache, searches: Searches, query: str, topk: int, hits: list[Hit]) -> None:
    answer = cache.ask(query, topk)
    searches.pending[query, topk].set_result(hits)
    await answer
    await asyncio.sleep(0)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.floats(allow_nan=False, allow_infinity=False))))
async def test_a_remembered_answer_is_the_one_that_was_found(found: list[tuple[int, float]]) -> None:
    hits = [Hit(row, score) for row, score in found]
    searches = Searches()
    cache = AnswerCache(searches, 10)
    await remember(cache, searches, "q", 100, hits)
    assert cache.ask("q", 100).result() == hits
    assert searches.count == 1


async def test_a_failed_search_is_told_to_all_and_not_remembered() -> None:
    searches = Searches()
    cache = AnswerCache(searches, 10)
    answers = [cache.ask("q", 3) for _ in range(2)]
    fault = SearchError("down")
    searches.pending["q", 3].set_exception(fault)
    assert await asyncio.gather(*answers, return_exceptions=True) == [fault] * 2
    assert cache.is_missing(["q"], 3)


async def test_when_the_last_caller_leaves_the_search_is_cancelled_and_a_new_caller_begins_another() -> None:
    searches = Searches()
    cache = AnswerCache(searches, 10)
    first, second = cache.ask("q", 3), cache.ask("q", 3)
    first.cancel()
    await asyncio.sleep(0)
    abandoned = searches.pending["q", 3]
    assert not abandoned.done()
    second.cancel()
    await asyncio.sleep(0)
    assert abandoned.cancelled()
    again = cache.ask("q", 3)
    await asyncio.sleep(0)
    searches.pending["q", 3].set_result([Hit(5, 1.0)])
    assert await again == [Hit(5, 1.0)]
    assert searches.count == 2
    assert not cache.is_missing(["q"], 3)
