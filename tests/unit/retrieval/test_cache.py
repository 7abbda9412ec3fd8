import asyncio
import gc
import tracemalloc
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from retrieval.service import ANSWER_BYTES, AnswerCache
from retrieval.wire import Hit
from scope_selfplay.base.errors import SearchError

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


async def test_equal_queries_in_flight_share_one_search() -> None:
    searches, counts = Searches(), Counter[str]()
    cache = AnswerCache(searches, 10, lambda answer: counts.update([answer]))
    answers = [cache.ask("same", 3) for _ in range(8)]
    searches.pending["same", 3].set_result([Hit(1, 0.5)])
    assert await asyncio.gather(*answers) == [[Hit(1, 0.5)]] * 8
    assert (searches.count, counts) == (1, {"joined": 7, "searched": 1})


async def test_a_remembered_answer_needs_no_search_but_another_topk_does() -> None:
    searches = Searches()
    cache = AnswerCache(searches, 10)
    cache.ask("q", 3)
    searches.pending["q", 3].set_result([])
    await asyncio.sleep(0)
    assert cache.ask("q", 3).done()
    assert not cache.ask("q", 4).done()
    assert not cache.is_missing(["q", "q"], 3)
    assert cache.is_missing(["q", "q", "new"], 3)
    cache.ask("new", 3)
    assert not cache.is_missing(["q", "q", "new"], 3)


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


async def test_long_queries_and_many_hits_take_no_more_memory_than_short_answers_would() -> None:
    """100,000 answers of 31 KB each took 3 GB."""
    searches, capacity = Searches(), 200
    cache = AnswerCache(searches, capacity)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2 * capacity):
            hits = [Hit(10**6 + number + rank, rank + number / 7) for rank in range(100)]
            await remember(cache, searches, f"{number} " + "long " * 3000, 100, hits)
            searches.pending.clear()
        del hits
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.bytes <= capacity * ANSWER_BYTES
    # What the interpreter holds beside the answers is counted too.
    assert taken < 1.5 * capacity * ANSWER_BYTES
    last = f"{2 * capacity - 1} " + "long " * 3000
    assert not cache.is_missing([last], 100)


async def test_a_failed_search_is_told_to_all_and_not_remembered() -> None:
    searches = Searches()
    cache = AnswerCache(searches, 10)
    answers = [cache.ask("q", 3) for _ in range(2)]
    searches.pending["q", 3].set_exception(SearchError("down"))
    assert [type(error) for error in await asyncio.gather(*answers, return_exceptions=True)] == [
        SearchError
    ] * 2
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
