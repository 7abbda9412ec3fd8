"""How an application is served: its port, taken before its address is named; uvicorn around it; and its clients.

Whoever reads an address can connect at once. Needs Starlette and uvicorn (the extras `view`, `retrieval`, `local`).
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from scope_selfplay.errors import ConfigError, OutsideError

BACKLOG = 2048
"""Connections that wait to be accepted: a step of training opens all of its own at once."""
_KEPT_ALIVE = 75
"""Seconds that an idle connection is kept; clients close theirs earlier."""

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


def url_of(listening: socket.socket) -> str:
    """`http://host:port` of a listening socket, an IPv6 host in brackets."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    finish: float = 0.1,
    protocol: type[asyncio.Protocol] | None = None,
) -> AsyncIterator[str]:
    """Serve `app` on the running loop for as long as the block lasts; gives the base URL, `http://host:port/v1`.

    Afterwards requests that have arrived are answered for up to `finish` seconds. `protocol` replaces uvicorn's own.
    Signals stay with the caller. Raises as `listen` does.
    """
    bound = listen(host, port)
    config = uvicorn.Config(
        NoBrowsers(app, host),
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
        yield f"{url_of(bound)}/v1"
    finally:
        ticking.cancel()
        await server.shutdown(sockets=[bound])


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


class BodyTooLargeError(ValueError):
    """A request with more bytes than are read."""


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
