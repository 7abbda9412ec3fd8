"""The application over one engine.

POST /v1/completions   one completion; 400, 401, 404, 413, 429 and 503 (with Retry-After) say what is wrong
GET  /v1/models        the model's name, folder and context
GET  /info             hash of the weights and what the engine is, for a client's handshake
GET  /health           200 while requests are taken, 503 while draining
GET  /metrics          Prometheus, `scope_model_*`
"""

import random
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from scope_selfplay.errors import InferenceError
from scope_selfplay.inference.chat_server import MAX_BODY, guarded, refuse
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served_model import WEIGHTS_HEADER
from scope_selfplay.model_server.completions import CompletionRequest, read_request, render_response

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ModelInfo(NamedTuple):
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
        name = "scope_model_"
        self.requests = Counter(
            name + "requests", "Completion requests by status", ["status"], registry=self.registry
        )
        self.seconds = Histogram(
            name + "request_seconds", "Seconds per completion", buckets=_SECONDS, registry=self.registry
        )
        self.tokens = Counter(
            name + "tokens", "Tokens read and sampled", ["direction"], registry=self.registry
        )
        self.running = Gauge(name + "running", "Sequences being decoded", registry=self.registry)
        self.waiting = Gauge(name + "waiting", "Sequences that wait for a slot", registry=self.registry)


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


def model_app(service: ModelService) -> web.Application:
    headers = {WEIGHTS_HEADER: service.info.weights}

    async def completions(request: web.Request) -> web.StreamResponse:
        began = time.perf_counter()
        response = await _complete(service, request)
        service.metrics.seconds.observe(time.perf_counter() - began)
        service.metrics.requests.labels(str(response.status)).inc()
        response.headers.update(headers)
        return response

    async def models(request: web.Request) -> web.StreamResponse:
        info = service.info
        row = {"id": info.model, "object": "model", "owned_by": "scope", "root": info.folder}
        return web.json_response({"object": "list", "data": [{**row, "max_model_len": info.max_length}]})

    async def about(request: web.Request) -> web.StreamResponse:
        return web.json_response(service.info._asdict())

    async def health(request: web.Request) -> web.StreamResponse:
        if service.draining:
            return refuse(503, "draining", {"Retry-After": "1"})
        return web.json_response({"status": "ok"})

    async def metrics(request: web.Request) -> web.StreamResponse:
        service.metrics.running.set(service.engine.running)
        service.metrics.waiting.set(service.engine.waiting)
        return web.Response(body=generate_latest(service.metrics.registry), content_type="text/plain")

    key = service.api_key
    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/v1/completions", guarded(completions, key))
    app.router.add_get("/v1/models", guarded(models, key))
    app.router.add_get("/info", guarded(about, key))
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    return app


async def _complete(service: ModelService, request: web.Request) -> web.StreamResponse:
    if service.draining:
        return refuse(503, "draining", {"Retry-After": "1"})
    info = service.info
    try:
        asked = read_request(
            await request.read(),
            vocabulary=info.vocabulary,
            max_length=info.max_length,
            end_ids=service.codec.end_ids,
        )
    except web.HTTPRequestEntityTooLarge:
        return refuse(413, f"a request may have {MAX_BODY:,} bytes")
    except ValueError as error:
        return refuse(400, str(error))
    if asked.model not in (None, info.model):
        return refuse(404, f"The model `{asked.model}` does not exist; this server has `{info.model}`.")
    if service.engine.waiting >= service.queue:
        return refuse(429, f"{service.queue} sequences wait already", {"Retry-After": "1"})
    return await _sample(service, asked)


async def _sample(service: ModelService, asked: CompletionRequest) -> web.StreamResponse:
    # A client that goes away cancels this, and with it the sequence.
    seed = random.getrandbits(63) if asked.seed is None else asked.seed
    try:
        sample = await service.engine.sample(
            asked.request, seed, temperature=asked.temperature, stops=asked.stops
        )
    except InferenceError as error:
        return refuse(500, str(error))
    service.metrics.tokens.labels("in").inc(len(asked.request.prompt_ids))
    service.metrics.tokens.labels("out").inc(len(sample.ids))
    text = service.codec.decode(sample.ids)
    return web.json_response(render_response(asked, sample, text, service.info.model))
