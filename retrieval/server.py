"""The retriever over HTTP: `/retrieve` and what an operator needs around it.

POST /retrieve    the wire of `wire`; 400, 401, 408, 413, 429 (with Retry-After), 503, 504 name what is wrong
GET  /documents/{id}  the whole document that a passage is of; 404 for an id that the corpus has not
GET  /info        hashes and sizes, for the client's handshake
GET  /healthz     the process answers (also /health)
GET  /readyz      200 once a real query was answered, 503 while draining
GET  /metrics     Prometheus

`serve` binds, answers until SIGTERM, drains, and ends.
"""

import asyncio
import contextlib
import hmac
import json
import math
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.batching import Overloaded
from retrieval.passages import LONGEST_ID, join_contents
from retrieval.service import SearchService
from retrieval.wire import WireError, parse_request
from scope_selfplay.errors import ScopeError
from scope_selfplay.wire.serving import (
    BodyTooLargeError,
    NoBrowsers,
    listen,
    read_body,
    url_of,
    while_connected,
)

BODY_SECONDS = 30.0
SEND_SECONDS = 5.0
"""From the deadline of the last request on: for clients to read their responses before they are cut off."""
CLOSE_SECONDS = 5.0
"""For searches whose clients have gone to end before their workers are killed."""
GONE = 499
"""The status, only ever seen in the metrics, of a request whose client did not wait."""
IDENTITY_HEADER = "X-Scope-Index"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class ListenAddress:
    host: str = "127.0.0.1"
    port: int = 8000
    drain_seconds: float = 0.0
    """Seconds between SIGTERM (readyz turns 503) and the closing of the port; a few on Kubernetes, where traffic still
    arrives until the endpoint is removed everywhere.
    """


async def serve(service: SearchService, address: ListenAddress, token: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests that arrived before are answered, within their deadline. A second
    signal ends the process at once.

    Raises RecordError or SearchError when the index cannot be opened, and as `listen` does.
    """
    # The index opens before the port, so that its errors reach the caller instead of a log.
    await service.load()
    config = uvicorn.Config(
        NoBrowsers(build_app(service, token), address.host),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        backlog=4096,
        # One client that does not read its response must not keep the process.
        timeout_graceful_shutdown=math.ceil(service.settings.deadline + SEND_SECONDS),
    )
    server = _Server(config, service, address.drain_seconds)
    try:
        listening = listen(address.host, address.port)
        print(f"serving {service.current.identity} on {url_of(listening)}", file=sys.stderr, flush=True)
        await server.serve(sockets=[listening])
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await service.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: SearchService, drain_seconds: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_seconds = drain_seconds
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            # A second signal means: do not wait. The workers end when their stdin does.
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._service.draining = True

        def stop() -> None:
            self.should_exit = True

        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_seconds, stop)


def build_app(service: SearchService, token: str | None = None) -> Starlette:
    """The application over a service, which the caller loads and closes.

    With a `token`, /retrieve, /documents and /info need it as a bearer token.
    """
    endpoints = _Endpoints(service, token)
    guard = endpoints.guard
    routes = [
        Route("/retrieve", guard(endpoints.retrieve), methods=["POST"]),
        Route("/documents/{passage_id:path}", guard(endpoints.document)),
        Route("/info", guard(endpoints.info)),
        Route("/healthz", endpoints.healthz),
        Route("/health", endpoints.healthz),
        Route("/readyz", endpoints.readyz),
        Route("/metrics", endpoints.metrics),
    ]
    return Starlette(routes=routes)


class _Endpoints:
    def __init__(self, service: SearchService, token: str | None) -> None:
        self._service = service
        self._expected = None if token is None else f"Bearer {token}".encode()

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that needs the token, where there is one."""

        async def guarded(request: Request) -> Response:
            # Starlette shows the bytes of a header as latin-1; clients send UTF-8.
            given = request.headers.get("authorization", "").encode("latin-1")
            if self._expected is not None and not hmac.compare_digest(given, self._expected):
                return _error(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
            return await endpoint(request)

        return guarded

    async def retrieve(self, request: Request) -> Response:
        start = time.perf_counter()
        response = await self._answer(request)
        self._service.metrics.seconds.observe(time.perf_counter() - start)
        self._service.metrics.requests.labels(str(response.status_code)).inc()
        return response

    async def _answer(self, request: Request) -> Response:
        service = self._service
        try:
            body = await _body(request, service.settings.limits.max_body)
            retrieval = parse_request(body, service.settings.limits)
            answer, identity = await while_connected(request, service.answer(retrieval))
        except ClientDisconnect:
            return _error(GONE, "the client went away")
        except WireError as error:
            return _error(error.status, str(error))
        except Overloaded as error:
            return _error(429, str(error), {"Retry-After": str(math.ceil(error.retry_after))})
        except TimeoutError:
            return _error(504, f"no answer within {service.settings.deadline:g} s")
        except ScopeError as error:
            return _error(503, str(error), {"Retry-After": "1"})
        return Response(answer, media_type="application/json", headers={IDENTITY_HEADER: identity})

    async def document(self, request: Request) -> Response:
        service, passage_id = self._service, request.path_params["passage_id"]
        try:
            found, identity = await service.document(passage_id)
        except TimeoutError:
            return _error(504, f"no answer within {service.settings.deadline:g} s")
        except ScopeError as error:
            return _error(503, str(error), {"Retry-After": "1"})
        if found is None:
            return _error(404, f"no document {passage_id[:LONGEST_ID]!r}", {IDENTITY_HEADER: identity})
        contents = join_contents(found.title, found.text)
        return _json(200, {"document": {"id": found.id, "contents": contents}}, {IDENTITY_HEADER: identity})

    async def info(self, request: Request) -> Response:
        try:
            return _json(200, self._service.current.info)
        except ScopeError as error:
            return _error(503, str(error))

    async def healthz(self, request: Request) -> Response:
        return _json(200, {"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        if self._service.is_ready:
            return _json(200, {"status": "ready"})
        return _json(503, {"status": "draining" if self._service.draining else "no search worker lives"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.render_metrics(), media_type="text/plain; version=0.0.4")


async def _body(request: Request, limit: int) -> bytes:
    """The request's body. Raises WireError for one that is too long or too slow, ClientDisconnect for half of one."""
    length = request.headers.get("content-length", "")
    try:
        if length.isdecimal() and int(length) > limit:
            raise BodyTooLargeError(f"a request may have {limit:,} bytes")
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request, limit)
    except BodyTooLargeError as error:
        raise WireError(413, str(error)) from None
    except TimeoutError:
        raise WireError(408, f"the request took longer than {BODY_SECONDS:g} s to arrive") from None


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json(status, {"error": message}, headers)


def _json(status: int, value: dict[str, object], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json")
