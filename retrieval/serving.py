"""Runs the server: binds, answers until SIGTERM, drains, ends. SIGHUP opens the index folder again."""

import asyncio
import contextlib
import math
import signal
import sys
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from retrieval.server import SearchService, build_app
from scope_selfplay.errors import ScopeError
from scope_selfplay.schemas import Value
from scope_selfplay.wire.serving import listen, url_of

SEND_SECONDS = 5.0
"""From the deadline of the last request on: for clients to read their responses before they are cut off."""
CLOSE_SECONDS = 5.0
"""For searches that nobody waits for any more to end before their workers are killed."""


class ListenAddress(Value):
    host: str = "127.0.0.1"
    port: int = 8000
    drain_seconds: float = 0.0
    """Seconds between SIGTERM (readyz turns 503) and the closing of the port; a few on Kubernetes, where
    traffic still arrives until the endpoint is removed everywhere.
    """


async def serve(service: SearchService, address: ListenAddress, token: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests that arrived before are answered, within their deadline. A second
    signal ends the process at once.

    Raises RecordError or SearchError when the index cannot be opened, and as `listen` does.
    """
    # The index opens before the port, so that its errors reach the caller instead of a log.
    await service.load()
    server = _Server(_config(build_app(service, token), service.deadline), service, address.drain_seconds)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    try:
        listening = listen(address.host, address.port)
        print(f"serving {service.info()['identity']} on {url_of(listening)}", file=sys.stderr, flush=True)
        await server.serve(sockets=[listening])
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await service.close()


def _config(app: Starlette, deadline: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        backlog=4096,
        # One client that does not read its response must not keep the process.
        timeout_graceful_shutdown=math.ceil(deadline + SEND_SECONDS),
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: SearchService, drain_seconds: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_seconds = drain_seconds
        self._loop = asyncio.get_running_loop()
        self._reloads: set[asyncio.Task[None]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            # Whoever asks twice does not want to wait. The workers end when their stdin does.
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_seconds, self._stop)

    def reload(self) -> None:
        task = asyncio.create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        try:
            await self._service.load()
        except ScopeError as error:
            self._service.metrics.reloads.labels("failed").inc()
            print(f"retriever: still serving the index before: {error}", file=sys.stderr, flush=True)
            return
        self._service.metrics.reloads.labels("done").inc()
        print(f"retriever: now serving {self._service.info()['identity']}", file=sys.stderr, flush=True)

    def _stop(self) -> None:
        self.should_exit = True
