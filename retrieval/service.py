"""A retriever over one index, without HTTP, and its metrics.

A query goes through `SearchService.answer`, the cache, the batcher and a search engine; its hits come back as the
stored bytes of their passages. Single queries are gathered: encoding a batch of 32 costs a fraction of encoding 32
times one. A free engine takes what waits at once. Only right after a batch of several, whose clients are about to come
back, it waits up to `linger` seconds for as many again; a lone client never waits.
"""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prometheus_client import Counter, Gauge, Histogram
from pydantic import Field

from retrieval.client import open_index
from retrieval.corpus import DocumentLookup
from retrieval.folder import IndexManifest, Passages, Verify, read_manifest, shown
from retrieval.profiles import ProfileName, check_memory, serve_memory
from retrieval.wire import MAX_RESPONSE, Hit, Retrieval, WireError, render_response
from retrieval.workers import ThreadEngine, WorkerEngine
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import memory_limit
from scope_selfplay.base.values import Document, Value
from scope_selfplay.net.loops import all_of
from scope_selfplay.net.serve import ServerMetrics

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RENDERED_AT_ONCE = 2
"""Large responses put together at the same time, which bounds their memory; others wait within their deadline."""
INLINE = 1 << 20
"""Bytes of passages that are spliced within a millisecond or two: a thread would cost more."""


class ServiceSettings(Value):
    folder: Path
    workers: int = Field(default=1, ge=0)
    """Search processes; 0 searches in a thread of the server."""
    queue: int = Field(default=4096, ge=1)
    """Requests with searches get 429 while so many queries wait; one that is accepted may have more."""
    cache: int = Field(default=100_000, ge=0)
    """Answers remembered, in at most 500 bytes each on average: fewer where topk is above 19."""
    deadline: float = Field(default=60.0, gt=0)
    """Seconds after which a request gets 504."""
    verify: Verify = Verify.AUTO


class SearchService:
    """Opens the index of a folder, answers one query with it before it is served, and serves it.

    Raises SearchError, WireError and Overloaded; the HTTP layer turns them into statuses.
    """

    identity: str
    info: dict[str, Any]
    """The answer of /info: hashes and sizes."""
    passages: Passages
    batcher: "Batcher"

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.metrics = RetrieverMetrics()
        self.draining = False
        self._threads = ThreadPoolExecutor(RENDERED_AT_ONCE, thread_name_prefix="render")

    @property
    def is_ready(self) -> bool:
        """True until draining, while something can search."""
        engine = self.batcher.engine
        return not self.draining and (not isinstance(engine, WorkerEngine) or engine.alive > 0)

    async def load(self) -> None:
        """Open what is served; before that a service is of no use. Raises RecordError, SearchError or ConfigError."""
        # Resolved once, so that a link that is switched meanwhile cannot mix two indexes.
        folder = self.settings.folder.resolve()
        manifest = await asyncio.to_thread(read_manifest, folder, Verify.SIZES)
        if manifest.profile == ProfileName.GPU and self.settings.workers > 1:
            raise ConfigError(
                f"--workers {self.settings.workers}: each would load its own copy of {folder} onto the GPU, "
                "which one worker keeps busy: serve the gpu profile with --workers 1"
            )
        check_memory(serve_memory(manifest, self.settings.workers), self.settings.workers, memory_limit())
        self.identity = manifest.identity
        fields = manifest.model_dump(mode="json", exclude={"files"})
        self.info = {"identity": manifest.identity, "bytes": manifest.size, **fields}
        self.passages = Passages.open(folder)
        self._documents = DocumentLookup(self.passages)
        self.batcher = Batcher(
            await self._engine(folder, manifest),
            capacity=self.settings.queue,
            on_batch=self.metrics.batch.observe,
        )
        self._cache = AnswerCache(self.batcher.submit, self.settings.cache, self.metrics.looked_up)
        try:
            # Search for the first passage's own words: ready means that a real query was answered.
            for hit in await self.batcher.submit(self.passages.contents(0)[:200], 1):
                self.passages.document(hit.row)
        except BaseException:
            await self.batcher.engine.close()
            raise

    async def close(self) -> None:
        """Wait for the searches that were asked for, then let go of the index; only the latter when cancelled."""
        try:
            await self.batcher.drain()
        finally:
            await self.batcher.engine.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: Retrieval) -> bytes:
        """The response body. Raises WireError (413) before any passage is read."""
        async with asyncio.timeout(self.settings.deadline):
            answers = await self._search(request)
            passages = self.passages
            size = passages.length([hit.row for hits in answers for hit in hits])
            # Without scores a row has its passage twice.
            if size * (1 if request.return_scores else 2) > MAX_RESPONSE:
                raise WireError(
                    413,
                    f"the response has more than {MAX_RESPONSE:,} bytes: ask for fewer queries or a smaller topk",
                )
            results = (((shown(passages.line(hit.row)), hit.score) for hit in hits) for hits in answers)
            render = partial(render_response, results, return_scores=request.return_scores)
            if size <= INLINE:
                return render()
            # One large response must not hold up the answers to everybody else.
            return await asyncio.get_running_loop().run_in_executor(self._threads, render)

    async def document(self, passage_id: str) -> Document | None:
        """The whole document that a passage is of, or None."""
        async with asyncio.timeout(self.settings.deadline):
            return await asyncio.to_thread(self._documents.document, passage_id)

    async def _engine(self, folder: Path, manifest: IndexManifest) -> "SearchEngine":
        """The engine over verified files."""
        verifying = asyncio.to_thread(read_manifest, folder, self.settings.verify)
        if not self.settings.workers:
            await verifying
            return ThreadEngine(await asyncio.to_thread(open_index, folder, manifest))
        engine = WorkerEngine(folder, self.settings.workers)
        try:
            # Checksums take about as long as workers take to start: both at once. A damaged file explains whatever a
            # worker reports about it.
            await all_of([verifying, engine.start()])
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _search(self, request: Retrieval) -> list[list[Hit]]:
        cache, batcher = self._cache, self.batcher
        if batcher.is_full and cache.is_missing(request.queries, request.topk):
            raise batcher.overloaded()
        answers: list[Answer] = []
        try:
            for query in request.queries:
                answers.append(cache.ask(query, request.topk))
            if all(answer.done() for answer in answers):
                return [answer.result() for answer in answers]
            return await asyncio.gather(*answers)
        finally:
            # Past its deadline, without its client, or failed: what still waits is searched for nobody.
            for answer in answers:
                answer.cancel()

    def measure(self) -> None:
        """Set the metrics that are read only when they are asked for."""
        self.metrics.ready.set(self.is_ready)
        self.metrics.waiting.set(self.batcher.waiting)
        if isinstance(self.batcher.engine, WorkerEngine):
            self.metrics.restarts.set(self.batcher.engine.restarts)


class RetrieverMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__("scope_retriever", SECONDS)
        own = self._own
        self.batch = Histogram("batch_queries", "Queries per batch", buckets=BATCH_SIZES, **own)
        self.waiting = Gauge("waiting_queries", "Queries in the queue", **own)
        self.ready = Gauge("ready", "1 while searches are answered", **own)
        self.restarts = Gauge("worker_restarts", "Search workers replaced", **own)
        queries = Counter("queries", "Queries remembered, joined to equal ones, searched", ["answer"], **own)
        self._lookups = {answer: queries.labels(answer) for answer in ("remembered", "joined", "searched")}

    def looked_up(self, answer: str) -> None:
        self._lookups[answer].inc()


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


ANSWER_BYTES = 500
"""What an answer may take on average; one of three hits takes 240 bytes, one of a hundred 1,800."""
HIT_BYTES = 16
ENTRY_BYTES = 190
"""What an answer without hits takes, its key and its place in the order of use included."""
Search = Callable[[str, int], Answer]


class InFlight(NamedTuple):
    """A search under way and the callers that wait for it."""

    search: Answer
    waiting: set[Answer]


class AnswerCache:
    """The answers used last, by query and topk: `capacity` of them, in at most ANSWER_BYTES each on average, so
    that long lists of hits leave fewer. 0 remembers nothing but still joins.
    """

    def __init__(
        self, search: Search, capacity: int, on_lookup: Callable[[str], None] = lambda answer: None
    ) -> None:
        """`on_lookup` is told of every answer where it is from: remembered, joined or searched."""
        self._search = search
        self._on_lookup = on_lookup
        self._capacity = capacity
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._in_flight: dict[bytes, InFlight] = {}
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
        answer: Answer = asyncio.get_running_loop().create_future()
        if (known := self._answers.get(key)) is not None:
            self._answers.move_to_end(key)
            self._on_lookup("remembered")
            count = len(known) // HIT_BYTES
            values = struct.unpack(f"<{count}q{count}d", known)
            answer.set_result(list(map(Hit, values[:count], values[count:])))
            return answer
        under_way = self._in_flight.get(key)
        if under_way is None:
            under_way = self._in_flight[key] = InFlight(self._search(query, topk), set())
            under_way.search.add_done_callback(lambda _: self._settle(key, under_way))
            self._on_lookup("searched")
        else:
            self._on_lookup("joined")
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
