"""A retriever over one index, without HTTP, and its metrics.

A query goes through `SearchService.answer`, the cache, the batcher and a search engine; its hits come back as the
stored bytes of their passages.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import Field

from retrieval.batching import Answer, AnswerCache, Batcher, SearchEngine
from retrieval.client import open_index
from retrieval.corpus import DocumentLookup
from retrieval.folder import IndexManifest, Verify, read_manifest
from retrieval.passages import Passages, shown
from retrieval.profiles import ProfileName, check_memory, serve_memory
from retrieval.wire import MAX_RESPONSE, Hit, Results, Retrieval, render_response, too_large
from retrieval.workers import ThreadEngine, WorkerEngine
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import memory_limit
from scope_selfplay.base.values import Document, Value

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
    max_batch: int = Field(default=32, ge=1)
    linger: float = Field(default=0.005, ge=0)
    queue: int = Field(default=4096, ge=1)
    """Requests with searches get 429 while so many queries wait; one that is accepted may have more."""
    cache: int = Field(default=100_000, ge=0)
    """Answers remembered, in at most 500 bytes each on average: fewer where topk is above 19."""
    deadline: float = Field(default=60.0, gt=0)
    """Seconds after which a request gets 504."""
    verify: Verify = Verify.AUTO
    max_response: int = MAX_RESPONSE
    """Bytes."""


class SearchService:
    """Opens the index of a folder, answers one query with it before it is served, and serves it.

    Raises SearchError, WireError and Overloaded; the HTTP layer turns them into statuses.
    """

    identity: str
    info: dict[str, Any]
    """The answer of /info: hashes and sizes."""
    passages: Passages
    batcher: Batcher

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
        self.passages = Passages.open(folder, manifest.corpus_hash)
        self._documents = DocumentLookup(self.passages)
        self.batcher = Batcher(
            await self._engine(folder, manifest),
            max_batch=self.settings.max_batch,
            linger=self.settings.linger,
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
            passages, most = self.passages, self.settings.max_response
            size = passages.length([hit.row for hits in answers for hit in hits])
            # Without scores a row has its passage twice.
            if size * (1 if request.return_scores else 2) > most:
                raise too_large(most)
            results = (((shown(passages.line(hit.row)), hit.score) for hit in hits) for hits in answers)
            return await self._render(results, return_scores=request.return_scores, is_large=size > INLINE)

    async def document(self, passage_id: str) -> Document | None:
        """The whole document that a passage is of, or None."""
        async with asyncio.timeout(self.settings.deadline):
            return await asyncio.to_thread(self._documents.document, passage_id)

    async def _render(self, results: Results, *, return_scores: bool, is_large: bool) -> bytes:
        """As `render_response`: one large response must not hold up the answers to everybody else."""
        most = self.settings.max_response
        if not is_large:
            return render_response(results, return_scores=return_scores, most=most)
        abandoned = threading.Event()

        def is_wanted(_: object) -> bool:
            return not abandoned.is_set()

        # Past its deadline or without its client, a thread ends after the passage at hand.
        wanted = (takewhile(is_wanted, rows) for rows in takewhile(is_wanted, results))
        work = partial(render_response, wanted, return_scores=return_scores, most=most)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            abandoned.set()

    async def _engine(self, folder: Path, manifest: IndexManifest) -> SearchEngine:
        """The engine over verified files."""
        verifying = asyncio.to_thread(read_manifest, folder, self.settings.verify)
        if not self.settings.workers:
            await verifying
            return ThreadEngine(await asyncio.to_thread(open_index, folder, manifest))
        # Checksums take about as long as workers take to start: both at once.
        engine = WorkerEngine(folder, self.settings.workers)
        started, verified = await asyncio.gather(engine.start(), verifying, return_exceptions=True)
        for outcome in (verified, started):
            if isinstance(outcome, BaseException):
                await engine.close()
                # A damaged file explains whatever a worker reports about it.
                raise outcome
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

    def render_metrics(self) -> bytes:
        """The exposition text; some metrics are read only now."""
        self.metrics.ready.set(self.is_ready)
        self.metrics.waiting.set(self.batcher.waiting)
        if isinstance(self.batcher.engine, WorkerEngine):
            self.metrics.restarts.set(self.batcher.engine.restarts)
        return self.metrics.render()


class RetrieverMetrics:
    """`scope_retriever_*`, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "scope_retriever", "registry": self._registry}
        self.requests = Counter("requests", "Answered requests", ["status"], **own)
        self.seconds = Histogram("request_seconds", "Seconds per request", buckets=SECONDS, **own)
        self.batch = Histogram("batch_queries", "Queries per batch", buckets=BATCH_SIZES, **own)
        self.waiting = Gauge("waiting_queries", "Queries in the queue", **own)
        self.ready = Gauge("ready", "1 while searches are answered", **own)
        self.restarts = Gauge("worker_restarts", "Search workers replaced", **own)
        queries = Counter("queries", "Queries by where the answer came from", ["answer"], **own)
        self._lookups = {answer: queries.labels(answer) for answer in ("remembered", "joined", "searched")}

    def looked_up(self, answer: str) -> None:
        self._lookups[answer].inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
