"""Runs the server: opens the model, listens until SIGTERM or SIGINT, answers what has arrived, ends."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from scope_selfplay import __version__
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.model_server.app import ModelInfo, ModelService, model_app
from scope_selfplay.schemas import Value
from scope_selfplay.training.policy import load_frozen, policy_path, weights_hash
from scope_selfplay.wire.serving import BACKLOG, listen, url_of


class EngineOptions(Value):
    name: str | None = None
    """Name of the model; its weights' hash when left out."""
    slots: int = 96
    max_length: int = 16_384
    deterministic: bool = True
    queue: int = 4096
    device: str = "auto"


def open_service(model: str, options: EngineOptions, api_key: str | None = None) -> ModelService:
    """The engine of a model directory, or of `embedded`.

    Raises CheckpointError; ConfigError for a device that is not there or slots that do not fit into memory.
    """
    folder = policy_path(model)
    codec = ChatCodec.load(folder)
    weights = weights_hash(folder)
    loaded = load_frozen(folder, options.device)
    name = options.name or f"{folder.name}-{weights}"
    max_length = min(
        options.max_length, getattr(loaded.config, "max_position_embeddings", options.max_length)
    )
    engine = InProcessModel(
        loaded,
        codec,
        identity=name,
        slots=options.slots,
        max_length=max_length,
        deterministic=options.deterministic,
        frozen=True,
    )
    info = ModelInfo(
        model=name,
        folder=str(folder.resolve()),
        weights=weights,
        vocabulary=loaded.config.vocab_size,
        max_length=max_length,
        deterministic=options.deterministic,
        slots=options.slots,
        version=__version__,
    )
    return ModelService(engine, codec, info, queue=options.queue, api_key=api_key)


@asynccontextmanager
async def listening(
    service: ModelService, *, host: str = "127.0.0.1", port: int = 0, finish: float = 60.0
) -> AsyncIterator[str]:
    """Serves for as long as the block lasts, then for up to `finish` seconds what has arrived; gives the URL.

    Raises as `listen` does.
    """
    bound = listen(host, port)
    runner = web.AppRunner(
        model_app(service), access_log=None, shutdown_timeout=finish, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.SockSite(runner, bound, backlog=BACKLOG).start()
        yield f"{url_of(bound)}/v1"
    finally:
        await runner.cleanup()


async def serve_until_stopped(
    service: ModelService, *, host: str, port: int, drain: float, said: Callable[[str], None]
) -> None:
    """SIGTERM or SIGINT turns /health to 503; after `drain` seconds the port closes and open requests end."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if service.draining:
            stopped.set()
        service.draining = True
        loop.call_later(drain, stopped.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with listening(service, host=host, port=port) as url:
        said(url)
        await stopped.wait()
