"""The HTTP face: `/retrieve` and what an operator needs around it.

POST /retrieve    the wire of `wire`; 400, 401, 408, 413, 429 (with Retry-After), 503, 504 say what is wrong
GET  /info        hashes and sizes, for the client's handshake
GET  /healthz     the process answers (also /health)
GET  /readyz      200 once a real query was answered, 503 while draining
GET  /metrics     Prometheus
POST /reload      open the index folder again, or shake hands with the shards again (only with a token)
"""

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.batching import Overloaded
from retrieval.metrics import RetrieverMetrics
from retrieval.wire import Retrieval, WireError, WireLimits, parse_request
from scope_selfplay.errors import ScopeError

BODY_SECONDS = 30.0
GONE = 499
"""The status, only ever seen in the metrics, of a request whose client did not wait."""
IDENTITY_HEADER = "X-Scope-Index"
Result = TypeVar("Result")
Endpoint = Callable[[Request], Awaitable[Response]]


class SearchService(Protocol):
    """What is served: one index (`service.IndexService`) or many (`router.ShardRouter`)."""

    limits: WireLimits
    deadline: float
    metrics: RetrieverMetrics
    draining: bool

    @property
    def is_ready(self) -> bool: ...

    async def load(self) -> None: ...

    async def close(self) -> None: ...

    async def answer(self, request: Retrieval) -> tuple[bytes, str]:
        """The response body, and the identity of the index that it came from."""

    def info(self) -> dict[str, Any]: ...

    def render_metrics(self) -> bytes: ...


def build_app(service: SearchService, token: str | None = None) -> Starlette:
    """The application over a service that whoever runs it loads and closes.

    With a `token`, /retrieve, /info and /reload need it as a bearer token.
    """
    guard = _guard(token)

    routes = [
        Route("/retrieve", guard(_retrieve(service)), methods=["POST"]),
        Route("/info", guard(_info(service))),
        Route("/healthz", _healthz),
        Route("/health", _healthz),
        Route("/readyz", _readyz(service)),
        Route("/metrics", _metrics(service)),
        Route("/reload", guard(_reload(service, allowed=token is not None)), methods=["POST"]),
    ]
    return Starlette(routes=routes)


def _guard(token: str | None) -> Callable[[Endpoint], Endpoint]:
    if token is None:
        return lambda endpoint: endpoint
    expected = f"Bearer {token}".encode()

    def guard(endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            # Starlette shows the bytes of a header as latin-1; clients send UTF-8.
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, expected):
                return _error(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
            return await endpoint(request)

        return guarded

    return guard


def _retrieve(service: SearchService) -> Endpoint:
    async def retrieve(request: Request) -> Response:
        start = time.perf_counter()
        response = await _answer(service, request)
        service.metrics.seconds.observe(time.perf_counter() - start)
        service.metrics.requests.labels(str(response.status_code)).inc()
        return response

    return retrieve


async def _answer(service: SearchService, request: Request) -> Response:
    try:
        body = await _body(request, service.limits.max_body)
        question = parse_request(body, service.limits)
        answer, identity = await _while_connected(request, service.answer(question))
    except WireError as error:
        return _error(error.status, str(error))
    except Overloaded as error:
        return _error(429, str(error), {"Retry-After": str(math.ceil(error.retry_after))})
    except TimeoutError:
        return _error(504, f"no answer within {service.deadline:g} s")
    except ScopeError as error:
        return _error(503, str(error), {"Retry-After": "1"})
    return Response(answer, media_type="application/json", headers={IDENTITY_HEADER: identity})


async def _while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives. Cancelled, and a WireError (499), when the client goes away before: an abandoned
    query must not take a search from those who wait.
    """
    doing = asyncio.current_task()
    assert doing is not None
    has_gone = False

    async def watch() -> None:
        nonlocal has_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_gone = True
        doing.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not has_gone or doing.uncancel():
            raise
        raise WireError(GONE, "the client went away") from None
    finally:
        watching.cancel()


async def _body(request: Request, limit: int) -> bytes:
    """The request's body. Raises WireError for one that is too long, too slow or cut off."""
    too_long = WireError(413, f"a request may have {limit:,} bytes")
    if _length(request) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise too_long
    except TimeoutError:
        raise WireError(408, f"the request took longer than {BODY_SECONDS:g} s to arrive") from None
    except ClientDisconnect:
        raise WireError(GONE, "the client went away") from None
    return bytes(body)


def _length(request: Request) -> int:
    value = request.headers.get("content-length", "")
    return int(value) if value.isdecimal() else 0


def _info(service: SearchService) -> Endpoint:
    async def info(request: Request) -> Response:
        try:
            return _json(200, service.info())
        except ScopeError as error:
            return _error(503, str(error))

    return info


async def _healthz(request: Request) -> Response:
    return _json(200, {"status": "ok"})


def _readyz(service: SearchService) -> Endpoint:
    async def readyz(request: Request) -> Response:
        if service.is_ready:
            return _json(200, {"status": "ready"})
        why = "draining" if service.draining else "no search worker lives, or a shard does not answer"
        return _json(503, {"status": why})

    return readyz


def _metrics(service: SearchService) -> Endpoint:
    async def metrics(request: Request) -> Response:
        return Response(service.render_metrics(), media_type="text/plain; version=0.0.4")

    return metrics


def _reload(service: SearchService, *, allowed: bool) -> Endpoint:
    async def reload(request: Request) -> Response:
        if not allowed:
            return _error(403, "reloading over HTTP needs a server with a token; SIGHUP always works")
        try:
            await service.load()
        except ScopeError as error:
            service.metrics.reloads.labels("failed").inc()
            return _error(503, f"still serving the index before: {error}")
        service.metrics.reloads.labels("done").inc()
        return _json(200, {"identity": service.info()["identity"]})

    return reload


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json(status, {"error": message}, headers)


def _json(status: int, value: dict[str, object], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json")
