"""A retriever over one index, without HTTP, and its metrics.

A query goes through `SearchService.answer`, the cache, the batcher and a search engine; its hits come back as the
stored bytes of their passages.
"""

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from retrieval.batching import Answer, Batcher, SearchEngine
from retrieval.cache import AnswerCache, LookupCounts
from retrieval.documents import DocumentLookup
from retrieval.hits import Hit
from retrieval.in_process import open_index
from retrieval.index_folder import IndexManifest, Verify, read_manifest
from retrieval.passages import Passages, shown
from retrieval.profiles import ProfileName
from retrieval.rendering import INLINE, Renderer
from retrieval.search_workers import ThreadEngine, WorkerEngine
from retrieval.serve_memory import check_memory, serve_memory
from retrieval.wire import ResponseRow, Retrieval, WireLimits, too_large
from scope_selfplay.container import memory_limit
from scope_selfplay.errors import ConfigError, SearchError
from scope_selfplay.schemas import Document, Value

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


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
    limits: WireLimits = WireLimits()


class OpenIndex:
    """One opened index with its engine, queue and cache."""

    def __init__(
        self, manifest: IndexManifest, passages: Passages, batcher: Batcher, cache: AnswerCache
    ) -> None:
        self.identity = manifest.identity
        fields = manifest.model_dump(mode="json", exclude={"files"})
        self.info = {"identity": manifest.identity, "bytes": manifest.size, **fields}
        """The answer of /info: hashes and sizes."""
        self.passages = passages
        self.documents = DocumentLookup(passages)
        self.engine = batcher.engine
        self.batcher = batcher
        self.cache = cache

    async def close(self) -> None:
        """Wait for the searches that were asked for, then let go of the index; only the latter when cancelled."""
        try:
            await self.batcher.drain()
        finally:
            await self.engine.close()


class SearchService:
    """Opens the index of a folder, answers one query with it before it is served, and serves it.

    Raises SearchError, WireError and Overloaded; the HTTP layer turns them into statuses.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.metrics = RetrieverMetrics()
        self.draining = False
        self.served: OpenIndex | None = None
        self._renderer = Renderer(settings.limits)

    @property
    def is_ready(self) -> bool:
        """True from the first answered query until draining, while something can search."""
        if self.served is None or self.draining:
            return False
        engine = self.served.engine
        return not isinstance(engine, WorkerEngine) or engine.alive > 0

    @property
    def current(self) -> OpenIndex:
        if self.served is None:
            raise SearchError("no index is open yet")
        return self.served

    async def load(self) -> None:
        """Open what is served. Raises RecordError, SearchError or ConfigError."""
        # Resolved once, so that a link that is switched meanwhile cannot mix two indexes.
        folder = self.settings.folder.resolve()
        manifest = await asyncio.to_thread(read_manifest, folder, Verify.SIZES)
        if manifest.profile == ProfileName.GPU and self.settings.workers > 1:
            raise ConfigError(
                f"--workers {self.settings.workers}: each would load its own copy of {folder} onto the GPU, "
                "which one worker keeps busy: serve the gpu profile with --workers 1"
            )
        check_memory(serve_memory(manifest, self.settings.workers), self.settings.workers, memory_limit())
        passages = Passages.open(folder, manifest.corpus_hash)
        engine = await self._engine(folder, manifest)
        batcher = Batcher(
            engine,
            max_batch=self.settings.max_batch,
            linger=self.settings.linger,
            capacity=self.settings.queue,
            on_batch=self.metrics.batch.observe,
        )
        try:
            # Search for the first passage's own words: ready means that a real query was answered.
            for hit in await batcher.submit(passages.contents(0)[:200], 1):
                passages.document(hit.row)
        except BaseException:
            await engine.close()
            raise
        self.served = OpenIndex(manifest, passages, batcher, AnswerCache(batcher.submit, self.settings.cache))

    async def close(self) -> None:
        if self.served is not None:
            await self.served.close()
        self._renderer.close()

    async def answer(self, request: Retrieval) -> tuple[bytes, str]:
        """The response body, and the identity of the index that it came from. Raises WireError (413) before any
        passage is read.
        """
        index = self.current
        async with asyncio.timeout(self.settings.deadline):
            answers = await self._search(index, request)
            passages, limits = index.passages, self.settings.limits
            size = passages.length([hit.row for hits in answers for hit in hits])
            # Without scores a row has its passage twice.
            if size * (1 if request.return_scores else 2) > limits.max_response:
                raise too_large(limits)
            results = (
                (ResponseRow(shown(passages.line(hit.row)), hit.score) for hit in hits) for hits in answers
            )
            body = await self._renderer.render(
                results, return_scores=request.return_scores, is_large=size > INLINE
            )
            return body, index.identity

    async def document(self, passage_id: str) -> tuple[Document | None, str]:
        """The whole document that a passage is of, or None, and the identity of the index that it came from."""
        index = self.current
        async with asyncio.timeout(self.settings.deadline):
            return await asyncio.to_thread(index.documents.document, passage_id), index.identity

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

    async def _search(self, index: OpenIndex, request: Retrieval) -> list[list[Hit]]:
        cache, batcher = index.cache, index.batcher
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
        counts = LookupCounts(0, 0, 0)
        if self.served is not None:
            self.metrics.waiting.set(self.served.batcher.waiting)
            if isinstance(self.served.engine, WorkerEngine):
                self.metrics.restarts.set(self.served.engine.restarts)
            counts = self.served.cache.counts
        return self.metrics.render(counts)


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
        self._queries = _LookupCollector()
        self._registry.register(self._queries)

    def render(self, counts: LookupCounts) -> bytes:
        """The exposition text; `counts` of the cache become `scope_retriever_queries_total{answer=...}`."""
        self._queries.counts = counts
        return generate_latest(self._registry)


class _LookupCollector(Collector):
    """Reads the cache's own counts, so that a lookup pays for counting only once."""

    def __init__(self) -> None:
        self.counts = LookupCounts(0, 0, 0)

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(
            "scope_retriever_queries", "Queries by where the answer came from", labels=["answer"]
        )
        for answer, count in self.counts._asdict().items():
            family.add_metric([answer], count)
        return [family]
