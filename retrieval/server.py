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
import math
import sys
from collections.abc import Awaitable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.folder import LONGEST_ID, join_contents
from retrieval.service import Overloaded, SearchService
from retrieval.wire import MAX_REQUEST, WireError, parse_request
from scope_selfplay.base.errors import ScopeError
from scope_selfplay.net.serve import (
    BodyTooLargeError,
    endpoint,
    json_response,
    read_body,
    refuse,
    serve_until_stopped,
    while_connected,
)

BODY_SECONDS = 30.0
SEND_SECONDS = 5.0
"""From the deadline of the last request on: for clients to read their responses before they are cut off."""
CLOSE_SECONDS = 5.0
"""For searches whose clients have gone to end before their workers are killed."""
IDENTITY_HEADER = "X-Scope-Index"


async def serve(
    service: SearchService, host: str, port: int, *, drain: float = 0.0, token: str | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; requests that arrived before are answered, within their deadline. A second
    signal ends the process at once. `drain`: seconds between SIGTERM (readyz turns 503) and the closing of the port; a
    few on Kubernetes, where traffic still arrives until the endpoint is removed everywhere.

    Raises RecordError or SearchError when the index cannot be opened, and as `listen` does.
    """
    # The index opens before the port, so that its errors reach the caller instead of a log.
    await service.load()

    def announce(url: str) -> None:
        where = url.removesuffix("/v1")
        print(f"serving {service.identity} on {where}", file=sys.stderr, flush=True)

    def drains() -> None:
        service.draining = True

    try:
        await serve_until_stopped(
            build_app(service, token),
            host=host,
            port=port,
            on_ready=announce,
            drain=drain,
            on_drain=drains,
            # One client that does not read its response must not keep the process.
            finish=service.settings.deadline + SEND_SECONDS,
        )
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await service.close()


def build_app(service: SearchService, token: str | None = None) -> Starlette:
    """The application over a service, which the caller loads and closes.

    With a `token`, /retrieve, /documents and /info need it as a bearer token.
    """

    async def retrieve(request: Request) -> Response:
        async def answer() -> Response:
            body = await _body(request, MAX_REQUEST)
            retrieval = parse_request(body)
            found = await while_connected(request, service.answer(retrieval))
            return Response(found, media_type="application/json", headers={IDENTITY_HEADER: service.identity})

        return await _or_refusal(answer(), service)

    async def document(request: Request) -> Response:
        async def answer() -> Response:
            passage_id, headers = request.path_params["passage_id"], {IDENTITY_HEADER: service.identity}
            found = await service.document(passage_id)
            if found is None:
                return refuse(404, f"no document {passage_id[:LONGEST_ID]!r}", headers)
            contents = join_contents(found.title, found.text)
            return json_response({"document": {"id": found.id, "contents": contents}}, headers=headers)

        return await _or_refusal(answer(), service)

    async def info(request: Request) -> Response:
        return json_response(service.info)

    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readyz(request: Request) -> Response:
        if service.is_ready:
            return json_response({"status": "ready"})
        return json_response({"status": "draining" if service.draining else "no search worker lives"}, 503)

    async def metrics(request: Request) -> Response:
        service.measure()
        return await service.metrics.answer(request)

    return Starlette(
        routes=[
            Route("/retrieve", endpoint(retrieve, token, service.metrics), methods=["POST"]),
            Route("/documents/{passage_id:path}", endpoint(document, token)),
            Route("/info", endpoint(info, token)),
            Route("/healthz", healthz),
            Route("/health", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )


async def _or_refusal(answer: Awaitable[Response], service: SearchService) -> Response:
    try:
        return await answer
    except WireError as error:
        return refuse(error.status, str(error))
    except Overloaded as error:
        return refuse(429, str(error), {"Retry-After": str(math.ceil(error.retry_after))})
    except TimeoutError:
        return refuse(504, f"no answer within {service.settings.deadline:g} s")
    except ScopeError as error:
        return refuse(503, str(error), {"Retry-After": "1"})


async def _body(request: Request, limit: int) -> bytes:
    """The request's body. Raises BodyTooLargeError, WireError for one that is too slow, ClientDisconnect for half."""
    length = request.headers.get("content-length", "")
    try:
        if length.isdecimal() and int(length) > limit:
            raise BodyTooLargeError(f"a request may have {limit:,} bytes")
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request, limit)
    except TimeoutError:
        raise WireError(408, f"the request took longer than {BODY_SECONDS:g} s to arrive") from None
