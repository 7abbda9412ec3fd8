"""A policy's engine, the application over it, and the server that drains before it ends.

POST /v1/completions   one completion; 400, 401, 404, 413, 429 and 503 (with Retry-After) say what is wrong
GET  /v1/models        the model's name, folder and context
GET  /info             hash of the weights and what the engine is, for a client's handshake
GET  /health           200 while requests are taken, 503 while draining
GET  /metrics          Prometheus, `scope_model_*`
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scope_selfplay import __version__
from scope_selfplay.errors import InferenceError
from scope_selfplay.inference.chat_server import MAX_BODY, endpoint, json_response, refuse
from scope_selfplay.inference.checkpoints import load_frozen, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served_model import WEIGHTS_HEADER
from scope_selfplay.model_server.completions import CompletionRequest, read_request, render_response
from scope_selfplay.store.weights import weights_hash
from scope_selfplay.wire.serving import BodyTooLargeError, read_body, serving, while_connected

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True)
class EngineOptions:
    name: str | None = None
    """Name of the model; its weights' hash when left out."""
    slots: int = 96
    max_length: int = 16_384
    deterministic: bool = True
    queue: int = 4096
    device: str = "auto"


@dataclass(frozen=True)
class ModelInfo:
    """What `/info` says. `weights` is what a partner's handshake compares."""

    model: str
    folder: str
    weights: str
    vocabulary: int
    max_length: int
    deterministic: bool
    slots: int
    version: str


class ModelMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "scope_model", "registry": self.registry}
        self.requests = Counter("requests", "Completion requests by status", ["status"], **ours)
        self.seconds = Histogram("request_seconds", "Seconds per completion", buckets=_SECONDS, **ours)
        self.tokens = Counter("tokens", "Tokens read and sampled", ["direction"], **ours)
        self.running = Gauge("running", "Sequences being decoded", **ours)
        self.waiting = Gauge("waiting", "Sequences that wait for a slot", **ours)


@dataclass
class ModelService:
    """An engine and what is known of it. `queue`: sequences that may wait before requests get 429."""

    engine: InProcessModel
    codec: ChatCodec
    info: ModelInfo
    queue: int = 4096
    api_key: str | None = None
    draining: bool = False
    metrics: ModelMetrics = field(default_factory=ModelMetrics)


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
        packed=not options.deterministic,
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


def model_app(service: ModelService) -> Starlette:
    """The paths above; a completion names the weights that it was sampled from."""

    async def completions(request: Request) -> ASGIApp:
        began = time.perf_counter()
        response = await _complete(service, request)
        service.metrics.seconds.observe(time.perf_counter() - began)
        service.metrics.requests.labels(str(response.status_code)).inc()
        response.headers[WEIGHTS_HEADER] = service.info.weights
        return response

    async def models(request: Request) -> ASGIApp:
        info = service.info
        row = {"id": info.model, "object": "model", "owned_by": "scope", "root": info.folder}
        return json_response({"object": "list", "data": [{**row, "max_model_len": info.max_length}]})

    async def about(request: Request) -> ASGIApp:
        return json_response(vars(service.info))

    async def health(request: Request) -> ASGIApp:
        if service.draining:
            return refuse(503, "draining", {"Retry-After": "1"})
        return json_response({"status": "ok"})

    async def metrics(request: Request) -> ASGIApp:
        service.metrics.running.set(service.engine.running)
        service.metrics.waiting.set(service.engine.waiting)
        return Response(generate_latest(service.metrics.registry), headers={"Content-Type": "text/plain"})

    key = service.api_key
    return Starlette(
        routes=[
            Route("/v1/completions", endpoint(completions, key), methods=["POST"]),
            Route("/v1/models", endpoint(models, key)),
            Route("/info", endpoint(about, key)),
            Route("/health", endpoint(health)),
            Route("/metrics", endpoint(metrics)),
        ]
    )


def serving_model(
    service: ModelService, *, host: str = "127.0.0.1", port: int = 0, finish: float = 60.0
) -> AbstractAsyncContextManager[str]:
    """Serves for as long as the block lasts, then for up to `finish` seconds what has arrived; gives the URL."""
    return serving(model_app(service), host=host, port=port, finish=finish)


async def serve_until_stopped(
    service: ModelService, *, host: str, port: int, drain: float, on_ready: Callable[[str], None]
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
    async with serving_model(service, host=host, port=port) as url:
        on_ready(url)
        await stopped.wait()


async def _complete(service: ModelService, request: Request) -> Response:
    if service.draining:
        return refuse(503, "draining", {"Retry-After": "1"})
    info = service.info
    try:
        parsed = read_request(
            await read_body(request, MAX_BODY),
            vocabulary=info.vocabulary,
            max_length=info.max_length,
            end_ids=service.codec.end_ids,
        )
    except BodyTooLargeError as error:
        return refuse(413, str(error))
    except ValueError as error:
        return refuse(400, str(error))
    if parsed.model not in (None, info.model):
        return refuse(404, f"The model `{parsed.model}` does not exist; this server has `{info.model}`.")
    if service.engine.waiting >= service.queue:
        return refuse(429, f"{service.queue} sequences wait already", {"Retry-After": "1"})
    return await while_connected(request, _sample(service, parsed))


async def _sample(service: ModelService, parsed: CompletionRequest) -> Response:
    seed = random.getrandbits(63) if parsed.seed is None else parsed.seed
    try:
        sample = await service.engine.sample(
            parsed.request, seed, temperature=parsed.temperature, top_p=parsed.top_p, stops=parsed.stops
        )
    except InferenceError as error:
        return refuse(500, str(error))
    service.metrics.tokens.labels("in").inc(len(parsed.request.prompt_ids))
    service.metrics.tokens.labels("out").inc(len(sample.ids))
    text = service.codec.decode(sample.ids)
    return json_response(render_response(parsed, sample, text, service.info.model))
