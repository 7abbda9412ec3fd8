"""How an application is served: its port, taken before its address is named; uvicorn around it; and its clients.

Whoever reads an address can connect at once. `chat_app` is one with the chat wire of vLLM (structured choices and
log-probabilities included) in front of anything that can answer a prompt. Needs Starlette and uvicorn (the extras
`view`, `retrieval`, `local`).
"""

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import json
import math
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.net.json import load_strict

BACKLOG = 2048
"""Connections that wait to be accepted: a step of training opens all of its own at once."""
_KEPT_ALIVE = 75
"""Seconds that an idle connection is kept; clients close theirs earlier."""

MAX_BODY = 16 << 20
"""Bytes of one request."""
_UNSEEN = 1e-9
_GONE = 499
_STOPS = (signal.SIGTERM, signal.SIGINT)

Result = TypeVar("Result")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at the first address of `host`; port 0 takes a free one.

    Raises OutsideError where another process has the port, ConfigError where this machine has no such address or
    forbids it.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host}:{port} is not an address to listen at ({error}); choose another --host"
        ) from None
    # asyncio turns Nagle's delay off only where the protocol is named: 40 ms an answer on a kept connection.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        bound.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise OutsideError(
                f"{host}:{port} is taken, another process listens there; end it, or choose another --port"
            ) from None
        why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise ConfigError(
            f"{host}:{port} cannot be listened at ({why}); choose another --host or --port"
        ) from None
    return bound


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    finish: float = 0.1,
    protocol: type[asyncio.Protocol] | None = None,
    browsers: bool = False,
) -> AsyncIterator[str]:
    """Serve `app` on the running loop for as long as the block lasts; gives the base URL, `http://host:port/v1`.

    Afterwards requests that have arrived are answered for up to `finish` seconds. `protocol` replaces uvicorn's own.
    Unless `browsers` may, programs alone ask. Signals stay with the caller. Raises as `listen` does.
    """
    bound = listen(host, port)
    config = uvicorn.Config(
        app if browsers else NoBrowsers(app, host),
        http=protocol or "auto",
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=_KEPT_ALIVE,
        backlog=BACKLOG,
        timeout_graceful_shutdown=finish,  # type: ignore[arg-type]  # any number of seconds will do
    )
    config.load()
    server = uvicorn.Server(config)
    # What `Server.serve` does, without its signal handlers, which belong to a process of its own.
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[bound])
    ticking = asyncio.create_task(server.main_loop())
    try:
        host, port = bound.getsockname()[:2]
        yield f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    finally:
        ticking.cancel()
        await server.shutdown(sockets=[bound])


async def serve_until_stopped(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    drain: float = 0.0,
    on_drain: Callable[[], None] = lambda: None,
    finish: float = 60.0,
    browsers: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT: `drain` seconds later, in which traffic still arrives on Kubernetes, the port
    closes, and what has arrived is answered for up to `finish` seconds. A second signal ends the process at once.

    Raises as `listen` does.
    """
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        on_drain()
        for number in _STOPS:
            loop.remove_signal_handler(number)
        loop.call_later(drain, stopped.set)

    for number in _STOPS:
        loop.add_signal_handler(number, stop)
    async with serving(app, host=host, port=port, finish=finish, browsers=browsers) as url:
        on_ready(url)
        await stopped.wait()


class NoBrowsers:
    """Wraps a server that programs ask, listening at `host`: a web page in somebody's browser gets nothing from it.

    Whatever a page posts names the page's origin. A page that reaches this machine by a name of its own (DNS rebinding)
    calls a loopback address by a foreign name; servers at other addresses have names that only their clients know.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._is_local = _is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        name = host_of(headers.get(b"host", b"").decode("latin-1"))
        if b"origin" in headers:
            refusal = PlainTextResponse("web pages are not answered\n", 403)
            await refusal(scope, receive, send)
        elif self._is_local and name and not _is_loopback(name):
            refusal = PlainTextResponse("this address is not called by that name\n", 421)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def host_of(header: str) -> str:
    """The name or address in a Host header, without its port, in small letters."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BodyTooLargeError(Exception):
    """A request with more bytes than are read; `endpoint` refuses it."""


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body. Raises BodyTooLargeError, ClientDisconnect."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise BodyTooLargeError(f"a request may have {limit:,} bytes")
    return bytes(data)


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives. Raises ClientDisconnect, with `work` cancelled, when the client goes away before.

    The request's body must have been read.
    """
    task = asyncio.current_task()
    assert task is not None
    has_gone = False

    async def watch() -> None:
        nonlocal has_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_gone = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not has_gone or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        watching.cancel()


@dataclass(frozen=True)
class ServedRequest:
    """A chat request as far as responders care: the last user message, the choices, the rest as it came."""

    prompt: str
    choices: tuple[str, ...]
    body: Mapping[str, object]
    request: Request | None = None


@dataclass(frozen=True)
class ServedReply:
    """`odds` are given for choices; `seconds` is how long the engine would have worked."""

    text: str
    odds: Mapping[str, float] = field(default_factory=dict)
    finish: str = "stop"
    seconds: float = 0.0
    reasoning: str | None = None
    refusal: str | None = None


Responder = Callable[[ServedRequest], ServedReply | ASGIApp | Awaitable[ServedReply | ASGIApp]]
"""Answers with a reply, or with a whole response; its ValueError is a status 400."""
Handler = Callable[[Request], Awaitable[ASGIApp]]


def chat_app(respond: Responder, *, model: str, api_key: str | None = None, metrics: str = "") -> Starlette:
    """The application; `respond` is called with every well-formed chat request.

    With an `api_key`, everything but /health and /metrics needs it as a bearer token. `metrics`: the prefix of the
    names that /metrics serves; without one there is no such path.
    """
    counted = ServerMetrics(metrics) if metrics else None

    async def completions(request: Request) -> ASGIApp:
        try:
            served = replace(read_request(await read_body(request, MAX_BODY)), request=request)
        except ValueError as error:
            return refuse(400, str(error))
        if served.body.get("model") != model:
            return refuse(404, f"The model `{served.body.get('model')}` does not exist.")
        return await while_connected(request, answer(served))

    async def answer(served: ServedRequest) -> ASGIApp:
        try:
            reply = respond(served)
            reply = await reply if isinstance(reply, Awaitable) else reply
        except ValueError as error:
            return refuse(400, str(error))
        return json_response(completion(served, reply, model)) if isinstance(reply, ServedReply) else reply

    async def models(request: Request) -> ASGIApp:
        return json_response({"object": "list", "data": [{"id": model, "object": "model"}]})

    async def health(request: Request) -> ASGIApp:
        return json_response({"status": "ok"})

    routes = [
        Route("/v1/chat/completions", endpoint(completions, api_key, counted), methods=["POST"]),
        Route("/v1/models", endpoint(models, api_key)),
        Route("/health", endpoint(health)),
    ]
    return Starlette(routes=routes + ([Route("/metrics", counted.answer)] if counted else []))


class ServerMetrics:
    """Prometheus metrics, `<name>_*`: requests by `status` (499 is a client's that did not wait) and their seconds."""

    def __init__(self, name: str, buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS) -> None:
        self.registry = CollectorRegistry()
        self._own: dict[str, Any] = {"namespace": name, "registry": self.registry}
        self.requests = Counter("requests", "Requests by status", ["status"], **self._own)
        self.seconds = Histogram("request_seconds", "Seconds per request", buckets=buckets, **self._own)

    async def answer(self, request: Request) -> Response:
        """The exposition text."""
        return Response(generate_latest(self.registry), headers={"Content-Type": "text/plain"})


def endpoint(handler: Handler, api_key: str | None = None, counted: ServerMetrics | None = None) -> Handler:
    """A handler for clients that are still there, and that send the key where there is one; others get 401, and 413
    for a body over the limit.

    What is `counted` are answers to those.
    """

    async def answer(request: Request) -> ASGIApp:
        # Starlette shows the bytes of a header as latin-1; clients send UTF-8.
        given = request.headers.get("authorization", "").encode("latin-1")
        if api_key is not None and not hmac.compare_digest(given, f"Bearer {api_key}".encode()):
            return refuse(401, "an API key is needed", {"WWW-Authenticate": "Bearer"})
        began = time.perf_counter()
        try:
            response = await handler(request)
        except ClientDisconnect:
            response = refuse(_GONE, "the client went away")
        except BodyTooLargeError as error:
            response = refuse(413, str(error))
        if counted is not None:
            counted.seconds.observe(time.perf_counter() - began)
            counted.requests.labels(str(getattr(response, "status_code", 200))).inc()
        return response

    return answer


def read_request(data: bytes) -> ServedRequest:
    """Raises ValueError for what is not a chat request."""
    body = load_strict(data.decode())
    if not isinstance(body, dict):
        raise ValueError("the request is not a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise ValueError("messages: expected a list of messages")
    prompt = messages[-1].get("content")
    if not isinstance(prompt, str):
        raise ValueError("messages: the last one has no text")
    outputs = body.get("structured_outputs")
    choices = outputs.get("choice", ()) if isinstance(outputs, dict) else ()
    return ServedRequest(prompt, tuple(str(choice) for choice in choices), body)


def completion(served: ServedRequest, reply: ServedReply, model: str) -> dict[str, object]:
    """The response's body. Tokens are counted as a quarter of the characters."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": reply.finish}
    if served.body.get("logprobs") and reply.odds:
        choice["logprobs"] = {"content": [_logprobs(reply)]}
    tokens_in, tokens_out = (
        -(-len(text) // 4) for text in (served.prompt, reply.text + (reply.reasoning or ""))
    )
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(tokens_in, tokens_out),
    }


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    total = tokens_in + tokens_out
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total}


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    error = {"message": message, "type": "BadRequestError" if status < 500 else "ServerError"}
    return json_response({"error": error}, status, headers)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json; charset=utf-8")


def _logprobs(reply: ServedReply) -> dict[str, object]:
    top = [
        {"token": token, "logprob": math.log(max(odds, _UNSEEN)), "bytes": list(token.encode())}
        for token, odds in sorted(reply.odds.items(), key=lambda item: -item[1])
    ]
    sampled = {"token": reply.text, "logprob": math.log(max(reply.odds.get(reply.text, 0.0), _UNSEEN))}
    return {**sampled, "bytes": list(reply.text.encode()), "top_logprobs": top}
