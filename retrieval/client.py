"""The retriever over HTTP, with the searcher's protocol: passages, or SearchError; never [] for a fault.

    async with HttpSearcher(url, allowed_hosts={"retriever"}) as searcher:
        passages = await searcher.search("Aldmoor", 3)

Entering makes the handshake: the server's /info must name the expected index, and every response must come
from it.
"""

import asyncio
import ipaddress
import json
import math
import random
import socket
from collections.abc import Collection
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from retrieval.passages import split_contents
from retrieval.strict_json import parse_object
from scope_selfplay.errors import ConfigError, RunMismatchError, SearchError
from scope_selfplay.schemas import Passage, Value

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class Patience(Value):
    """How long a client keeps trying, and how much it reads."""

    deadline: float = 60.0
    """Seconds for one search, retries included."""
    attempt: float = 20.0
    """Seconds for one attempt."""
    attempts: int = 8
    first_pause: float = 0.25
    """Seconds before the first retry; doubles, with jitter. A longer Retry-After wins."""
    longest_pause: float = 10.0
    max_response: int = 4 << 20
    """Bytes of one response."""
    connections: int = 256


class HttpSearcher:
    """Searches one server. `identity` is the index and corpus of the handshake."""

    def __init__(
        self,
        url: str,
        *,
        allowed_hosts: Collection[str] = LOOPBACK,
        expected_identity: str | None = None,
        token: str | None = None,
        patience: Patience | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        """Raises ConfigError for a URL that is not http(s) to an allowed host."""
        self._url = checked_url(url, allowed_hosts)
        self._expected = expected_identity
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience = patience or Patience()
        self._jitter = jitter or random.Random()
        self._session: aiohttp.ClientSession | None = None
        self.identity = ""
        self.info: dict[str, Any] = {}
        """What the server said about itself at the handshake."""

    async def __aenter__(self) -> "HttpSearcher":
        connector = aiohttp.TCPConnector(limit=self._patience.connections, resolver=GuardedResolver())
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        try:
            await self._handshake()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def search(self, query: str, topk: int) -> list[Passage]:
        """At most `topk` passages, best first. Raises SearchError, RunMismatchError for another index."""
        request = {"queries": [query], "topk": topk, "return_scores": True}
        body = json.dumps(request).encode()
        passages = _passages(await self.ask(body))
        if len(passages) > topk:
            raise SearchError(f"{self._url}: {len(passages)} passages for topk {topk}")
        return passages

    async def ask(self, body: bytes) -> dict[str, Any]:
        """The response to a whole request of the wire, unread. Raises as `search`."""
        return await self._ask("POST", "/retrieve", body)

    async def _handshake(self) -> None:
        info = await self._ask("GET", "/info", None)
        identity = info.get("identity")
        if not isinstance(identity, str) or not identity:
            raise RunMismatchError(f"{self._url}: /info names no index: not a retriever of this project?")
        if self._expected is not None and identity != self._expected:
            raise RunMismatchError(
                f"{self._url} serves {identity}, this run was made with {self._expected}: "
                "serve that index, or start a new run"
            )
        self.identity, self.info = identity, info

    async def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        """One JSON object, after retries. Raises SearchError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience.deadline
        pause = self._patience.first_pause
        for attempt in range(1, self._patience.attempts + 1):
            seconds = min(self._patience.attempt, end - loop.time())
            try:
                return await self._attempt(method, path, body, seconds)
            except _Retry as retry:
                wait = max(retry.after, pause * self._jitter.uniform(0.5, 1.0))
                if attempt == self._patience.attempts or loop.time() + wait >= end:
                    raise SearchError(
                        f"{self._url}{path}: {retry}; gave up after {attempt} attempts"
                    ) from None
                await asyncio.sleep(wait)
                pause = min(pause * 2, self._patience.longest_pause)
        raise AssertionError("attempts is at least 1")

    async def _attempt(self, method: str, path: str, body: bytes | None, seconds: float) -> dict[str, Any]:
        assert self._session is not None, "use `async with HttpSearcher(...)`"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method, self._url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                data = await self._read(response)
                if response.status != 200:
                    self._refuse(response, data)
                self._check_index(response)
        except TimeoutError:
            raise _Retry(f"no answer within {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry(f"{type(error).__name__}: {error}") from None
        try:
            return parse_object(data)
        except ValueError as error:
            raise _Retry(f"the response is {error}") from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        limit = self._patience.max_response
        data = bytearray()
        async for part in response.content.iter_chunked(1 << 16):
            data += part
            if len(data) > limit:
                raise SearchError(f"{self._url}: a response of more than {limit:,} bytes")
        return bytes(data)

    def _refuse(self, response: aiohttp.ClientResponse, data: bytes) -> None:
        said = data[:200].decode("utf-8", "replace")
        if response.status in RETRIED:
            raise _Retry(f"status {response.status}: {said}", _seconds(response.headers.get("Retry-After")))
        raise SearchError(f"{self._url}: status {response.status}: {said}")

    def _check_index(self, response: aiohttp.ClientResponse) -> None:
        served = response.headers.get("X-Scope-Index")
        if self.identity and served is not None and served != self.identity:
            raise RunMismatchError(f"{self._url} now serves {served}, the handshake was with {self.identity}")


class GuardedResolver(AbstractResolver):
    """Resolves names as usual, but never to a link-local address (cloud metadata services live there)."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            if ipaddress.ip_address(result["host"].partition("%")[0]).is_link_local:
                raise OSError(f"{host} resolves to the link-local address {result['host']}")
        return found

    async def close(self) -> None:
        await self._inner.close()


def checked_url(url: str, allowed_hosts: Collection[str]) -> str:
    """`url` without a trailing slash or `/retrieve`. Raises ConfigError when it may not be called."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"retriever URL {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ConfigError(
            f"retriever URL {url!r}: expected http(s)://host:port without user, query or fragment"
        )
    if host not in allowed_hosts:
        raise ConfigError(
            f"retriever URL {url!r}: host {host} is not allowed; allowed: {sorted(allowed_hosts)}"
        )
    if _is_link_local(host):
        raise ConfigError(f"retriever URL {url!r}: link-local addresses are never called")
    name = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/").removesuffix("/retrieve")
    return f"{parts.scheme}://{name}{f':{port}' if port else ''}{path}"


class _Retry(Exception):
    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False


def _seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 0)
    except ValueError:  # an HTTP date: our servers send seconds
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _passages(response: dict[str, Any]) -> list[Passage]:
    try:
        (rows,) = response["result"]
        return [_passage(row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SearchError(
            f"the retriever's response has another shape: {type(error).__name__}: {error}"
        ) from None


def _passage(row: dict[str, Any]) -> Passage:
    document, score = row["document"], row["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"score {score!r}")
    if not isinstance(document["contents"], str):
        raise ValueError("contents is not a string")
    contents = split_contents(document["contents"])
    return Passage(id=str(document["id"]), title=contents.title, text=contents.text, score=score)
