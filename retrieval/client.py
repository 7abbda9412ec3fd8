"""The retriever over HTTP, with the searcher's protocol: passages, or SearchError; never [] for a fault.

    async with HttpSearcher(url) as searcher:
        passages = await searcher.search("Aldmoor", 3)

Entering makes the handshake: the server's /info must name the expected index, and every response must come
from it.
"""

import asyncio
import contextlib
import json
import math
import threading
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp

from retrieval.corpus import DocumentLookup
from retrieval.folder import IndexKind, IndexManifest, Passages, Verify, read_manifest, split_contents
from retrieval.wire import LONGEST_QUERY, Index
from scope_selfplay.base.errors import RecordError, RunMismatchError, ScopeError, SearchError, imports_for
from scope_selfplay.base.values import Document, Passage
from scope_selfplay.net.client import Client, Refused, ServerUnavailable
from scope_selfplay.net.json import parse_object


class RetrieverDownError(SearchError):
    """No answer before the retries were used up; every other SearchError is an answer."""


class RefusedError(SearchError):
    """The server will not answer this request, however often it is sent; `reason` is its own and names no URL."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class RemoteSearcher(ABC):
    """An index that a server holds. Entering makes the handshake; `identity` and `info` are what it says of itself.

    Raises SearchError (RetrieverDownError where nothing answered, RefusedError), RunMismatchError for another index.
    """

    def __init__(self, client: Client, expected_identity: str | None, *, what: str) -> None:
        self._client, self._expected, self._what = client, expected_identity, what
        self.identity = ""
        self.info: dict[str, Any] = {}
        """What `index.json` of a run keeps of it."""

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            info = await self._served()
            identity = info.get("identity")
            if not isinstance(identity, str) or not identity:
                raise RunMismatchError(
                    f"{self._what}: /info names no index: not a retriever of this project?"
                )
            if self._expected is not None and identity != self._expected:
                raise RunMismatchError(
                    f"{self._what} serves {identity}, this run was made with {self._expected}: "
                    "serve that index, or start a new run"
                )
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        self.identity, self.info = identity, info
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    def wait(self, seconds: float) -> None:
        """Give the server so many seconds for each question from now on."""
        self._client.retry_policy = replace(self._client.retry_policy, deadline=seconds)

    @abstractmethod
    async def search(self, query: str, topk: int) -> list[Passage]:
        """At most `topk` passages, best first."""

    @abstractmethod
    async def document(self, passage_id: str) -> Document | None:
        """The whole document that a passage is of; None where there is no such passage."""

    @abstractmethod
    async def _served(self) -> dict[str, Any]:
        """What the server says of its index; its name is `identity`."""

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            return await self._client.ask(method, path, data, check=self._check_index)
        except Refused as refused:
            reason = ""
            # Our servers give one; another server's body has another shape.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                reason = str(parse_object(refused.body)["error"]["message"])
            raise RefusedError(str(refused), refused.status, reason) from None
        except ServerUnavailable as fault:
            raise RetrieverDownError(str(fault)) from None

    def _check_index(self, response: aiohttp.ClientResponse) -> None:
        served = response.headers.get("X-Scope-Index")
        if self.identity and served is not None and served != self.identity:
            raise RunMismatchError(
                f"{self._what} now serves {served}, the handshake was with {self.identity}"
            )


class HttpSearcher(RemoteSearcher):
    """Searches one server of ours."""

    def __init__(self, url: str, *, expected_identity: str | None = None, **options: Any) -> None:
        """`options` as of Client. Raises ConfigError for a URL that is not http(s)."""
        client = Client(url.rstrip("/").removesuffix("/retrieve"), what="retriever URL", **options)
        super().__init__(client, expected_identity, what=client.url)

    async def search(self, query: str, topk: int) -> list[Passage]:
        """A query is searched with its first LONGEST_QUERY characters."""
        request = {"queries": [query[:LONGEST_QUERY]], "topk": topk, "return_scores": True}
        passages = _passages(await self._ask("POST", "/retrieve", request))
        if len(passages) > topk:
            raise SearchError(f"{self._what}: {len(passages)} passages for topk {topk}")
        return passages

    async def document(self, passage_id: str) -> Document | None:
        try:
            answer = await self._ask("GET", f"/documents/{urllib.parse.quote(passage_id, safe='')}")
        except RefusedError as refused:
            if refused.status != 404:
                raise
            if refused.reason:
                return None
            raise SearchError(
                f"{self._what} has no /documents/, which `open` reads: expected `scope serve-retriever`"
            ) from None
        try:
            title, text = split_contents(answer["document"]["contents"])
            return Document(id=str(answer["document"]["id"]), title=title, text=text)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SearchError(f"{self._what}: a document of another shape: {error}") from None

    async def _served(self) -> dict[str, Any]:
        return await self._ask("GET", "/info")


def _passages(response: dict[str, Any]) -> list[Passage]:
    passages = []
    try:
        (rows,) = response["result"]
        for row in rows:
            document, score = row["document"], row["score"]
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise ValueError(f"score {score!r}")
            if not isinstance(document["contents"], str):
                raise ValueError("contents is not a string")
            title, text = split_contents(document["contents"])
            passages.append(Passage(id=str(document["id"]), title=title, text=text, score=score))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SearchError(
            f"the retriever's response has another shape: {type(error).__name__}: {error}"
        ) from None
    return passages


class InProcessSearcher:
    """Answers queries from one index and its corpus; `identity` names both, `info` is what a server's /info gives."""

    def __init__(
        self, index: Index, passages: Passages, identity: str, info: dict[str, Any] | None = None
    ) -> None:
        if index.size != passages.size:
            raise SearchError(
                f"the index has {index.size:,} rows, the corpus {passages.size:,}: build it again"
            )
        self.identity = identity
        self.info = info or {}
        self._index = index
        self._passages = passages
        self._documents = DocumentLookup(passages)
        # A thread's lock, not asyncio's: a searcher outlives the event loop that first used it.
        self._lock = threading.Lock()

    async def search(self, query: str, topk: int) -> list[Passage]:
        """At most `topk` passages, best first; [] only when no word of the query occurs in the corpus.

        Raises SearchError for a query without text, a topk below 1, and when the search itself fails.
        """
        if not query.strip() or topk < 1:
            raise SearchError(f"query {query[:40]!r} with topk {topk}: expected some text and at least 1")
        return await asyncio.to_thread(self._search, query[:LONGEST_QUERY], topk)

    async def document(self, passage_id: str) -> Document | None:
        """The whole document that a passage is of; None where there is no such passage."""
        return await asyncio.to_thread(self._documents.document, passage_id)

    def _search(self, query: str, topk: int) -> list[Passage]:
        try:
            with self._lock:
                (hits,) = self._index.search([query], topk)
            found = ((vars(self._passages.document(row)), score) for row, score in hits)
            return [Passage(**document | {"metadata": {}, "score": score}) for document, score in found]
        except ScopeError:
            raise
        except Exception as error:  # the wall to faiss and onnxruntime
            raise SearchError(f"the in-process search failed: {type(error).__name__}: {error}") from error


def open_index(folder: Path, manifest: IndexManifest, *, threads: int = 1) -> Index:
    """An index ready to search with `threads` threads. Raises RecordError when it is not the manifest's.

    The heavy libraries are imported only for the kind that needs them.
    """
    index: Index
    match manifest.kind:
        case IndexKind.BM25:
            from retrieval.bm25 import Bm25Index

            index = Bm25Index.open(folder)
        case IndexKind.DENSE:
            from retrieval.dense import DenseIndex

            index = DenseIndex.open(folder, manifest, threads=threads)
    if index.size != manifest.rows:
        raise RecordError(f"{folder}: the index has {index.size:,} rows, the manifest says {manifest.rows:,}")
    return index


def open_searcher(folder: Path, *, threads: int = 1, verify: Verify = Verify.AUTO) -> InProcessSearcher:
    """The index of a folder. Raises RecordError when it is unfinished or damaged."""
    manifest = read_manifest(folder, verify)
    index = open_index(folder, manifest, threads=threads)
    passages = Passages.open(folder)
    info = manifest.model_dump(mode="json", exclude={"files"})
    return InProcessSearcher(index, passages, manifest.identity, info)


def bm25_searcher(documents: Iterable[Document]) -> InProcessSearcher:
    """BM25 over `documents`, held in memory. Equal documents give equal results and an equal identity.

    Raises CorpusError for no documents and for an id given twice, ConfigError where bm25s is not installed.
    """
    with imports_for("searching a run's documents", "local"):
        from retrieval.bm25 import Bm25Index

    passages = Passages.from_documents(documents)
    info = {"kind": IndexKind.BM25.value, "rows": passages.size, "corpus_hash": passages.corpus_hash}
    identity = f"bm25-{passages.corpus_hash[:16]}"
    return InProcessSearcher(Bm25Index.build(passages), passages, identity, info)
