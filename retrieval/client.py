"""The retriever over HTTP, with the searcher's protocol: passages, or SearchError; never [] for a fault.

    async with HttpSearcher(url, allowed_hosts={"retriever"}) as searcher:
        passages = await searcher.search("Aldmoor", 3)

Entering makes the handshake: the server's /info must name the expected index, and every response must come
from it.
"""

import contextlib
import json
import math
import urllib.parse
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

import aiohttp

from retrieval.passages import split_contents
from retrieval.wire import LONGEST_QUERY
from scope_selfplay.errors import RunMismatchError, SearchError
from scope_selfplay.schemas import Document, Passage
from scope_selfplay.wire.guarded_http import LOOPBACK
from scope_selfplay.wire.json_client import JsonClient, Refused, RetryPolicy, ServerUnavailable
from scope_selfplay.wire.strict_json import parse_object


class RetrieverDownError(SearchError):
    """No answer before the retries were used up; every other SearchError is an answer."""


class RefusedError(SearchError):
    """The server will not answer this request, however often it is sent; `reason` is its own and names no URL."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class HttpSearcher:
    """Searches one server. `identity` is the index and corpus of the handshake."""

    def __init__(
        self,
        url: str,
        *,
        allowed_hosts: Collection[str] = LOOPBACK,
        expected_identity: str | None = None,
        token: str | None = None,
        retry_policy: RetryPolicy | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`say` as in JsonClient. Raises ConfigError for a URL that is not http(s) to an allowed host."""
        self._client = JsonClient(
            url.rstrip("/").removesuffix("/retrieve"),
            what="retriever URL",
            allowed_hosts=allowed_hosts,
            token=token,
            retry_policy=retry_policy,
            say=say,
        )
        self._url = self._client.url
        self._expected = expected_identity
        self.identity = ""
        self.info: dict[str, Any] = {}
        """The server's /info at the handshake."""

    async def __aenter__(self) -> "HttpSearcher":
        await self._client.__aenter__()
        try:
            info = await self._ask("GET", "/info", None)
            identity = info.get("identity")
            if not isinstance(identity, str) or not identity:
                raise RunMismatchError(f"{self._url}: /info names no index: not a retriever of this project?")
            if self._expected is not None and identity != self._expected:
                raise RunMismatchError(
                    f"{self._url} serves {identity}, this run was made with {self._expected}: "
                    "serve that index, or start a new run"
                )
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        self.identity, self.info = identity, info
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def search(self, query: str, topk: int) -> list[Passage]:
        """At most `topk` passages, best first; a query is searched with its first LONGEST_QUERY characters.

        Raises SearchError (RetrieverDownError where nothing answered), RunMismatchError for another index.
        """
        request = {"queries": [query[:LONGEST_QUERY]], "topk": topk, "return_scores": True}
        passages = _passages(await self._ask("POST", "/retrieve", json.dumps(request).encode()))
        if len(passages) > topk:
            raise SearchError(f"{self._url}: {len(passages)} passages for topk {topk}")
        return passages

    async def document(self, passage_id: str) -> Document | None:
        """The whole document that a passage is of; None where there is no such passage. Raises as `search`."""
        try:
            answer = await self._ask("GET", f"/documents/{urllib.parse.quote(passage_id, safe='')}", None)
        except RefusedError as refused:
            if refused.status == 404 and refused.reason:
                return None
            if refused.status == 404:
                raise SearchError(
                    f"{self._url} has no /documents/, which `open` reads: expected `scope serve-retriever`"
                ) from None
            raise
        try:
            title, text = split_contents(answer["document"]["contents"])
            return Document(id=str(answer["document"]["id"]), title=title, text=text)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SearchError(f"{self._url}: a document of another shape: {error}") from None

    async def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        try:
            return await self._client.ask(method, path, body, check=self._check_index)
        except Refused as refused:
            reason = ""
            # Our servers give one; another server's body has another shape.
            with contextlib.suppress(ValueError, KeyError):
                reason = str(parse_object(refused.body)["error"])
            raise RefusedError(str(refused), refused.status, reason) from None
        except ServerUnavailable as fault:
            raise RetrieverDownError(str(fault)) from None

    def _check_index(self, response: aiohttp.ClientResponse) -> None:
        served = response.headers.get("X-Scope-Index")
        if self.identity and served is not None and served != self.identity:
            raise RunMismatchError(f"{self._url} now serves {served}, the handshake was with {self.identity}")


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
