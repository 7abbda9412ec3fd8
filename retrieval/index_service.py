"""A retriever over one index, without HTTP.

A query goes through `SearchService.answer`, the cache, the batcher and a search engine; its hits come back as the
stored bytes of their passages.
"""

import asyncio
from pathlib import Path

from pydantic import Field

from retrieval.batching import Answer, Batcher, SearchEngine
from retrieval.cache import AnswerCache, LookupCounts
from retrieval.documents import DocumentLookup
from retrieval.hits import Hit
from retrieval.in_process import open_index
from retrieval.index_folder import IndexManifest, Verify, read_manifest
from retrieval.passages import Passages, shown
from retrieval.profiles import ProfileName
from retrieval.rendering import INLINE, INLINE_CUT
from retrieval.search_workers import ThreadEngine, WorkerEngine
from retrieval.serve_memory import check_memory, serve_memory
from retrieval.service import SearchService, ServedIndex
from retrieval.wire import ResponseRow, Retrieval, WireLimits, too_large
from scope_selfplay.container import memory_limit
from scope_selfplay.errors import ConfigError
from scope_selfplay.schemas import Document, Value


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
    tokenizer: Path | None = None
    """tokenizer.json of the policy; without it `max_tokens` is refused."""
    verify: Verify = Verify.AUTO
    limits: WireLimits = WireLimits()


class OpenIndex(ServedIndex):
    """One opened index with its engine, queue and cache."""

    def __init__(
        self, manifest: IndexManifest, passages: Passages, batcher: Batcher, cache: AnswerCache
    ) -> None:
        fields = manifest.model_dump(mode="json", exclude={"files"})
        super().__init__(manifest.identity, {"identity": manifest.identity, "bytes": manifest.size, **fields})
        self.passages = passages
        self.documents = DocumentLookup(passages)
        self.engine = batcher.engine
        self.batcher = batcher
        self.cache = cache

    async def close(self) -> None:
        try:
            await self.wait_until_idle()
            await self.batcher.drain()
        finally:
            await self.engine.close()


class IndexService(SearchService[OpenIndex]):
    """Opens the index of a folder, and answers one query with it before it is served."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings.limits, settings.deadline, settings.tokenizer)
        self.settings = settings
        self._counts_before = LookupCounts(0, 0, 0)
        """Of the indexes that were served before."""

    def can_search(self, index: OpenIndex) -> bool:
        return not isinstance(index.engine, WorkerEngine) or index.engine.alive > 0

    def measure(self) -> LookupCounts:
        if self.served is None:
            return self._counts_before
        self.metrics.waiting.set(self.served.batcher.waiting)
        if isinstance(self.served.engine, WorkerEngine):
            self.metrics.restarts.set(self.served.engine.restarts)
        return LookupCounts(*map(sum, zip(self._counts_before, self.served.cache.counts, strict=True)))

    async def find_document(self, index: OpenIndex, passage_id: str) -> Document | None:
        return await asyncio.to_thread(index.documents.document, passage_id)

    async def open(self) -> OpenIndex:
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
        # The caller replaces the previous index at once.
        self._counts_before = self.measure()
        return OpenIndex(manifest, passages, batcher, AnswerCache(batcher.submit, self.settings.cache))

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

    async def respond(self, index: OpenIndex, request: Retrieval) -> bytes:
        """The response body. Raises WireError (413), for whole passages before any of them is read."""
        answers = await self._search(index, request)
        passages, is_cut = index.passages, request.max_tokens is not None
        size = passages.length([hit.row for hits in answers for hit in hits])
        # Without scores a row has its passage twice.
        if not is_cut and size * (1 if request.return_scores else 2) > self.limits.max_response:
            raise too_large(self.limits)
        results = (
            (ResponseRow(shown(passages.line(hit.row)), hit.score) for hit in hits) for hits in answers
        )
        return await self.render(results, request, is_large=size > (INLINE_CUT if is_cut else INLINE))

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
