"""What a running retriever does, without HTTP: open an index, answer requests, change the index, drain."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from retrieval.batching import Batcher, SearchEngine
from retrieval.cache import Answer, AnswerCache, LookupCounts
from retrieval.hits import Hit
from retrieval.indexes import open_index
from retrieval.manifest import IndexManifest, Verify, read_manifest
from retrieval.metrics import RetrieverMetrics
from retrieval.passages import Passages, shown
from retrieval.profiles import ProfileName
from retrieval.rendering import Renderer, is_large
from retrieval.search_workers import ThreadEngine, WorkerEngine
from retrieval.token_cap import TokenCap
from retrieval.wire import ResponseRow, Retrieval, WireError, WireLimits, least_size, too_large
from scope_selfplay.errors import ConfigError, SearchError
from scope_selfplay.schemas import Value


class ServiceSettings(Value):
    folder: Path
    workers: int = Field(default=1, ge=0)
    """Search processes; 0 searches in a thread of the server."""
    max_batch: int = Field(default=32, ge=1)
    linger: float = Field(default=0.005, ge=0)
    queue: int = Field(default=4096, ge=1)
    """Requests with searches get 429 while so many queries wait; one that is let in may have more."""
    cache: int = Field(default=100_000, ge=0)
    """Answers remembered, in at most 500 bytes each on average: fewer where topk is above 19."""
    deadline: float = Field(default=60.0, gt=0)
    """Seconds after which a request gets 504."""
    tokenizer: Path | None = None
    """tokenizer.json of the policy; without it `max_tokens` is refused."""
    verify: Verify = Verify.AUTO
    limits: WireLimits = WireLimits()


class ServedIndex:
    """One opened index with its engine, queue and cache; a reload makes the next one."""

    def __init__(
        self,
        manifest: IndexManifest,
        passages: Passages,
        engine: SearchEngine,
        batcher: Batcher,
        cache: AnswerCache,
    ):
        self.manifest = manifest
        self.passages = passages
        self.engine = engine
        self.batcher = batcher
        self.cache = cache
        self.requests = 0
        self.idle = asyncio.Event()

    async def close(self) -> None:
        """Wait for the requests that began here, then free the index; only free it when cancelled."""
        try:
            while self.requests:
                self.idle.clear()
                await self.idle.wait()
            await self.batcher.drain()
        finally:
            await self.engine.close()


class IndexService:
    """Raises SearchError, WireError and Overloaded; the HTTP layer turns them into statuses."""

    def __init__(self, settings: ServiceSettings, metrics: RetrieverMetrics) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.deadline = settings.deadline
        self.metrics = metrics
        self.draining = False
        self._generation: ServedIndex | None = None
        self._before = LookupCounts(0, 0, 0)
        self._closing: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()
        self._cap = TokenCap(settings.tokenizer) if settings.tokenizer else None
        self._renderer = Renderer(settings.limits)

    @property
    def is_ready(self) -> bool:
        """True from the first answered query until draining, while a worker lives."""
        if self._generation is None or self.draining:
            return False
        engine = self._generation.engine
        return not isinstance(engine, WorkerEngine) or engine.alive > 0

    def info(self) -> dict[str, Any]:
        """Hashes and sizes of the served index. Raises SearchError before it is open."""
        manifest = self._current().manifest
        fields = manifest.model_dump(mode="json", exclude={"files"})
        return {"identity": manifest.identity, "bytes": manifest.size, **fields}

    async def load(self) -> None:
        """Open the folder, answer one query with it, then serve from it; the index before it drains.

        Raises RecordError or SearchError and keeps what was served before.
        """
        async with self._reloading:
            generation = await self._open()
            before, self._generation = self._generation, generation
            if before is not None:
                self._before = self.counts(before)
                task = asyncio.create_task(before.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def answer(self, request: Retrieval) -> tuple[bytes, str]:
        """The response body, and the identity of the index that it came from."""
        if request.max_tokens is not None and self._cap is None:
            raise WireError(400, "max_tokens needs a server that was started with --tokenizer")
        generation = self._current()
        generation.requests += 1
        try:
            async with asyncio.timeout(self.settings.deadline):
                answers = await self._search(generation, request)
                body = await self._render(generation, request, answers)
        finally:
            generation.requests -= 1
            generation.idle.set()
        return body, generation.manifest.identity

    async def close(self) -> None:
        if self._generation is not None:
            await self._generation.close()
        await asyncio.gather(*self._closing)
        self._renderer.close()

    def render_metrics(self) -> bytes:
        self.metrics.ready.set(self.is_ready)
        counts = self._before
        if self._generation is not None:
            counts = self.counts(self._generation)
            self.metrics.waiting.set(self._generation.batcher.waiting)
            if isinstance(self._generation.engine, WorkerEngine):
                self.metrics.restarts.set(self._generation.engine.restarts)
        return self.metrics.render(counts)

    def counts(self, generation: ServedIndex) -> LookupCounts:
        return LookupCounts(*(a + b for a, b in zip(self._before, generation.cache.counts, strict=True)))

    def _current(self) -> ServedIndex:
        if self._generation is None:
            raise SearchError("the index is not open yet")
        return self._generation

    async def _open(self) -> ServedIndex:
        # Resolved once, so that a link that is switched meanwhile cannot mix two indexes.
        folder = self.settings.folder.resolve()
        manifest = await asyncio.to_thread(read_manifest, folder, Verify.SIZES)
        if manifest.profile == ProfileName.GPU and self.settings.workers > 1:
            raise ConfigError(
                f"--workers {self.settings.workers}: each would load its own copy of {folder} onto the GPU, "
                "which one worker keeps busy: serve the gpu profile with --workers 1"
            )
        passages = Passages.open(folder, manifest.corpus_hash)
        engine = await self._engine(folder, manifest)
        batcher = Batcher(
            engine,
            max_batch=self.settings.max_batch,
            linger=self.settings.linger,
            capacity=self.settings.queue,
            on_batch=self.metrics.batch.observe,
        )
        generation = ServedIndex(
            manifest, passages, engine, batcher, AnswerCache(batcher.submit, self.settings.cache)
        )
        try:
            await self._try_out(generation)
        except BaseException:
            await engine.close()
            raise
        return generation

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
                # A damaged file explains whatever a worker says about it.
                raise outcome
        return engine

    async def _try_out(self, generation: ServedIndex) -> None:
        """Search for the first passage's own words: ready means that a real query was answered."""
        words = generation.passages.contents(0)[:200]
        hits = await generation.batcher.submit(words, 1)
        for hit in hits:
            generation.passages.document(hit.row)

    async def _search(self, generation: ServedIndex, request: Retrieval) -> list[list[Hit]]:
        cache, batcher = generation.cache, generation.batcher
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

    async def _render(self, generation: ServedIndex, request: Retrieval, answers: list[list[Hit]]) -> bytes:
        """The response body. Raises WireError (413), for whole passages before any of them is read."""
        passages, cap, max_tokens = generation.passages, self._cap, request.max_tokens
        size = passages.length([hit.row for hits in answers for hit in hits])
        results: Iterable[Iterable[ResponseRow]] = (
            (ResponseRow(shown(passages.line(hit.row)), hit.score) for hit in hits) for hits in answers
        )
        if cap is not None and max_tokens is not None:
            results = (cap.cut(rows, max_tokens) for rows in results)
        elif least_size(size, return_scores=request.return_scores) > self.limits.max_response:
            raise too_large(self.limits)
        return await self._renderer.render(
            results,
            return_scores=request.return_scores,
            is_large=is_large(size, cut=max_tokens is not None),
        )
