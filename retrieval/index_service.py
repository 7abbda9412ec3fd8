"""A retriever over one index, without HTTP: open the index, answer requests, change the index, drain.

A query goes through `answer`, the cache, the batcher and a search engine; its hits come back as the stored bytes of
their passages.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from retrieval.batching import Batcher, SearchEngine
from retrieval.cache import Answer, AnswerCache, LookupCounts
from retrieval.hits import Hit
from retrieval.in_process import open_index
from retrieval.index_folder import IndexManifest, Verify, read_manifest
from retrieval.metrics import RetrieverMetrics
from retrieval.passages import Passages, shown
from retrieval.profiles import ProfileName
from retrieval.rendering import Renderer, TokenCap, is_large
from retrieval.search_workers import ThreadEngine, WorkerEngine
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


@dataclass
class ServedIndex:
    """One opened index with its engine, queue and cache; a reload makes the next one."""

    manifest: IndexManifest
    passages: Passages
    engine: SearchEngine
    batcher: Batcher
    cache: AnswerCache
    requests: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

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

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.deadline = settings.deadline
        self.metrics = RetrieverMetrics()
        self.draining = False
        self.served: ServedIndex | None = None
        self._counts_before = LookupCounts(0, 0, 0)
        """Of the indexes that were served before."""
        self._closing: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()
        self.token_cap = TokenCap(settings.tokenizer) if settings.tokenizer else None
        self._renderer = Renderer(settings.limits)

    @property
    def is_ready(self) -> bool:
        """True from the first answered query until draining, while a worker lives."""
        if self.served is None or self.draining:
            return False
        engine = self.served.engine
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
            opened = await self._open()
            before, self.served = self.served, opened
            if before is not None:
                self._counts_before = self._counts(before)
                task = asyncio.create_task(before.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def answer(self, request: Retrieval) -> tuple[bytes, str]:
        """The response body, and the identity of the index that it came from."""
        if request.max_tokens is not None and self.token_cap is None:
            raise WireError(400, "max_tokens needs a server that was started with --tokenizer")
        index = self._current()
        index.requests += 1
        try:
            async with asyncio.timeout(self.deadline):
                hits = await self._search(index, request)
                return await self._render(index, request, hits), index.manifest.identity
        finally:
            index.requests -= 1
            index.idle.set()

    async def close(self) -> None:
        if self.served is not None:
            await self.served.close()
        await asyncio.gather(*self._closing)
        self._renderer.close()

    def render_metrics(self) -> bytes:
        self.metrics.ready.set(self.is_ready)
        if self.served is None:
            return self.metrics.render(self._counts_before)
        self.metrics.waiting.set(self.served.batcher.waiting)
        if isinstance(self.served.engine, WorkerEngine):
            self.metrics.restarts.set(self.served.engine.restarts)
        return self.metrics.render(self._counts(self.served))

    def _counts(self, index: ServedIndex) -> LookupCounts:
        return LookupCounts(*(a + b for a, b in zip(self._counts_before, index.cache.counts, strict=True)))

    def _current(self) -> ServedIndex:
        if self.served is None:
            raise SearchError("the index is not open yet")
        return self.served

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
        try:
            # Search for the first passage's own words: ready means that a real query was answered.
            for hit in await batcher.submit(passages.contents(0)[:200], 1):
                passages.document(hit.row)
        except BaseException:
            await engine.close()
            raise
        return ServedIndex(
            manifest, passages, engine, batcher, AnswerCache(batcher.submit, self.settings.cache)
        )

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

    async def _search(self, index: ServedIndex, request: Retrieval) -> list[list[Hit]]:
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

    async def _render(self, index: ServedIndex, request: Retrieval, answers: list[list[Hit]]) -> bytes:
        """The response body. Raises WireError (413), for whole passages before any of them is read."""
        passages, cap, max_tokens = index.passages, self.token_cap, request.max_tokens
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
