"""A policy's engine, the application over it, and the server that drains before it ends.

POST /v1/completions   one completion; 400, 401, 404, 413, 429 and 503 (with Retry-After) say what is wrong
GET  /v1/models        the model's name, folder and context
GET  /info             hash of the weights and what the engine is, for a client's handshake
GET  /health           200 while requests are taken, 503 while draining
GET  /metrics          Prometheus, `scope_model_*`
"""

import random
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from prometheus_client import Counter, Gauge
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scope_selfplay import __version__
from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.inference.checkpoints import load_frozen, policy_path
from scope_selfplay.inference.codec import ChatCodec, Stops
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served import WEIGHTS_HEADER
from scope_selfplay.net.json import parse_object
from scope_selfplay.net.serve import (
    MAX_BODY,
    ServerMetrics,
    endpoint,
    json_response,
    read_body,
    refuse,
    usage,
    while_connected,
)
from scope_selfplay.store.folder import weights_hash

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "stream": (False,),
    "suffix": (),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "ignore_eos": (False,),
    "prompt_logprobs": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
}
"""Fields that may only say what the engine does anyway; null always may."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class CompletionRequest(BaseModel):
    """A request; null is as good as nothing. A temperature of 0 asks for greedy choices, scored at temperature 1."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = None
    prompt: list[int] = Field(min_length=1)
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list)] = []
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] = []
    logprobs: Literal[0] | None = None
    """Only the sampled token's are known."""
    return_token_ids: bool = False

    @property
    def request(self) -> Generate:
        return Generate(tuple(self.prompt), self.max_tokens, greedy=self.temperature == 0)


def read_request(data: bytes, *, vocabulary: int, max_length: int) -> CompletionRequest:
    """Raises ValueError, which names the field, what was found and what is expected."""
    body = {name: value for name, value in parse_object(data).items() if value is not None}
    for name, allowed in _NEUTRAL.items():
        if name in body and body[name] not in allowed:
            expected = f", expected {allowed[0]!r}" if allowed else ": this server does not know it"
            raise ValueError(f"{name} is {str(body[name])[:40]}{expected}")
    try:
        read = CompletionRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name} is {str(first['input'])[:40]}: {first['msg']}") from None
    for name, ids in (("prompt", read.prompt), ("stop_token_ids", read.stop_token_ids)):
        for token in ids:
            if not 0 <= token < vocabulary:
                raise ValueError(f"{name} holds {token}, expected token ids below {vocabulary}")
    if max_length - len(read.prompt) < read.max_tokens:
        raise ValueError(
            f"max_tokens is {read.max_tokens}: with a prompt of {len(read.prompt)} tokens it exceeds the context of "
            f"{max_length}"
        )
    if read.stop and not read.include_stop_str_in_output:
        raise ValueError(
            "include_stop_str_in_output: a stop string always stays in the output; expected true"
        )
    return read


def render_response(parsed: CompletionRequest, sample: Sample, text: str, model: str) -> dict[str, Any]:
    """The body. `logprobs.tokens` are written as vLLM does it for `return_tokens_as_token_ids`."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "finish_reason": sample.finish.value,
        "stop_reason": None,
        "logprobs": None,
    }
    if parsed.logprobs is not None:
        tokens = [f"token_id:{token}" for token in sample.ids]
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": sample.logprobs, "top_logprobs": None}
    if parsed.return_token_ids:
        choice |= {"token_ids": sample.ids, "prompt_token_ids": parsed.prompt}
    return {
        "id": "cmpl-0",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(len(parsed.prompt), len(sample.ids)),
    }


_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ModelMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__("scope_model", _SECONDS)
        self.tokens = Counter("tokens", "Tokens read (in) and sampled (out)", ["direction"], **self._own)
        self.running = Gauge("running", "Sequences being decoded", **self._own)
        self.waiting = Gauge("waiting", "Sequences that wait for a slot", **self._own)


class ModelService:
    """The engine of a model directory, or of `embedded`, and what `/info` says of it (`info`).

    Its name on the wire is `name`, or that of its weights; so many sequences may wait (`queue`) before requests get
    429. Raises CheckpointError; ConfigError for a device that is not there or slots that do not fit into memory.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        slots: int = 96,
        max_length: int = 16_384,
        deterministic: bool = True,
        queue: int = 4096,
        device: str = "auto",
        api_key: str | None = None,
    ) -> None:
        folder = policy_path(model)
        self.codec = ChatCodec.load(folder)
        self.weights = weights_hash(folder)
        loaded = load_frozen(folder, device)
        self.name = name or f"{folder.name}-{self.weights}"
        self.max_length = min(max_length, getattr(loaded.config, "max_position_embeddings", max_length))
        self.vocabulary: int = loaded.config.vocab_size
        self.engine = InProcessModel(
            loaded,
            self.codec,
            identity=self.name,
            slots=slots,
            max_length=self.max_length,
            deterministic=deterministic,
            packed=not deterministic,
            frozen=True,
        )
        self.info = {
            "model": self.name,
            "folder": str(folder.resolve()),
            # What a partner's handshake compares.
            "weights": self.weights,
            "vocabulary": self.vocabulary,
            "max_length": self.max_length,
            "deterministic": deterministic,
            "slots": slots,
            "version": __version__,
        }
        self.queue = queue
        self.api_key = api_key
        self.draining = False
        self.metrics = ModelMetrics()
        self.metrics.running.set_function(lambda: self.engine.running)
        self.metrics.waiting.set_function(lambda: self.engine.waiting)


def model_app(service: ModelService) -> Starlette:
    """The paths above; a completion names the weights that it was sampled from."""

    async def completions(request: Request) -> ASGIApp:
        response = await _complete(service, request)
        response.headers[WEIGHTS_HEADER] = service.weights
        return response

    async def models(request: Request) -> ASGIApp:
        row = {"id": service.name, "object": "model", "owned_by": "scope", "root": service.info["folder"]}
        return json_response({"object": "list", "data": [{**row, "max_model_len": service.max_length}]})

    async def about(request: Request) -> ASGIApp:
        return json_response(service.info)

    async def health(request: Request) -> ASGIApp:
        if service.draining:
            return refuse(503, "draining", {"Retry-After": "1"})
        return json_response({"status": "ok"})

    key = service.api_key
    return Starlette(
        routes=[
            Route("/v1/completions", endpoint(completions, key, service.metrics), methods=["POST"]),
            Route("/v1/models", endpoint(models, key)),
            Route("/info", endpoint(about, key)),
            Route("/health", endpoint(health)),
            Route("/metrics", service.metrics.answer),
        ]
    )


async def _complete(service: ModelService, request: Request) -> Response:
    if service.draining:
        return refuse(503, "draining", {"Retry-After": "1"})
    try:
        data = await read_body(request, MAX_BODY)
        parsed = read_request(data, vocabulary=service.vocabulary, max_length=service.max_length)
    except ValueError as error:
        return refuse(400, str(error))
    if parsed.model not in (None, service.name):
        return refuse(404, f"The model `{parsed.model}` does not exist; this server has `{service.name}`.")
    if service.engine.waiting >= service.queue:
        return refuse(429, f"{service.queue} sequences wait already", {"Retry-After": "1"})
    return await while_connected(request, _sample(service, parsed))


async def _sample(service: ModelService, asked: CompletionRequest) -> Response:
    seed = random.getrandbits(63) if asked.seed is None else asked.seed
    stops = Stops(frozenset(asked.stop_token_ids) | service.codec.end_ids, tuple(asked.stop))
    try:
        sample = await service.engine.sample(
            asked.request, seed, temperature=asked.temperature, top_p=asked.top_p, stops=stops
        )
    except InferenceError as error:
        return refuse(500, str(error))
    service.metrics.tokens.labels("in").inc(len(asked.prompt))
    service.metrics.tokens.labels("out").inc(len(sample.ids))
    text = service.codec.decode(sample.ids)
    return json_response(render_response(asked, sample, text, service.name))
