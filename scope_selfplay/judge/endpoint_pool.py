"""A judge's endpoints: one pool per event loop, opened by the first call in it, closed with the loop."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self
from urllib.parse import urlsplit

from scope_selfplay.config import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.errors import ConfigError, InferenceError, JudgeError, RunMismatchError
from scope_selfplay.inference.served_model import Served, ask_what_is_served
from scope_selfplay.judge.chat_client import ChatClient, ChatFault, ChatReply
from scope_selfplay.judge.endpoint import CANARY, Endpoint
from scope_selfplay.judge.metrics import JudgeMetrics
from scope_selfplay.judge.replicas import ReplicatedEndpoint
from scope_selfplay.judge.special_tokens import ask_special_tokens
from scope_selfplay.schemas import Fault
from scope_selfplay.wire.guarded_http import secret
from scope_selfplay.wire.json_client import JsonClient, PerLoop, RetryPolicy

# Canaries and probes need a connection when all others hang.
_SPARE_CONNECTIONS = 2
# At the start somebody may be watching.
_HANDSHAKE = RetryPolicy(attempt=30.0, attempts=1)


class EndpointPool:
    """One event loop's endpoints by role, and the completions in flight by cache key; use with `async with`.

    Not made with `asynccontextmanager`: a loop that ends closes all generators at once, and this one would be closed
    by the loop and by `PerLoop` at the same time.
    """

    def __init__(self, config: JudgeConfig, metrics: JudgeMetrics, say: Callable[[str], None]) -> None:
        self.endpoints: dict[JudgeRole, ReplicatedEndpoint] = {}
        self.in_flight: dict[bytes, asyncio.Task[ChatReply]] = {}
        self._config = config
        self._metrics = metrics
        self._say = say
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        shared: dict[str, ReplicatedEndpoint] = {}
        for role in JudgeRole:
            config = self._config.endpoint_of(role)
            name = config.model_dump_json()
            if name not in shared:
                urls = config.each_url
                opened = [await self._open(config, url, is_replica=len(urls) > 1) for url in urls]
                shared[name] = ReplicatedEndpoint(opened, outage=self._config.patience.outage)
            self.endpoints[role] = shared[name]
        return self

    async def _open(self, config: EndpointConfig, url: str, *, is_replica: bool) -> Endpoint:
        client = await self._stack.enter_async_context(_client(self._config, config, url))
        endpoint = Endpoint(
            client,
            self._config.patience,
            limit=self._config.concurrency,
            metrics=self._metrics,
            jitter=random.Random(),
            say=self._say,
            is_replica=is_replica,
        )
        self._stack.push_async_callback(endpoint.close)
        return endpoint

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


def pool_per_loop(
    config: JudgeConfig, metrics: JudgeMetrics, say: Callable[[str], None] = lambda text: None
) -> PerLoop[EndpointPool]:
    """A pool for every event loop that asks. `config` has a model for every endpoint.

    Raises ConfigError for a URL, a host or a missing key.
    """
    for role in JudgeRole:
        # Opened in each loop; made once here, so that a mistake shows at the start.
        for url in config.endpoint_of(role).each_url:
            _client(config, config.endpoint_of(role), url)
    return PerLoop(lambda: EndpointPool(config, metrics, say))


async def with_models(config: JudgeConfig) -> JudgeConfig:
    """The config with model and context of every endpoint.

    Raises ConfigError for a model that an endpoint does not serve, or a choice between several; RunMismatchError for
    other weights than an endpoint must serve; JudgeError for an endpoint that does not answer.
    """
    named = {role: await _with_model(config, config.endpoint_of(role)) for role in JudgeRole}
    endpoints = config.endpoints.model_copy(update={role.value: endpoint for role, endpoint in named.items()})
    return config.model_copy(update={"endpoints": endpoints})


async def special_tokens(config: JudgeConfig) -> frozenset[str]:
    """What the endpoints' tokenizers take for control, as far as they tell. Raises ConfigError."""
    found: set[str] = set()
    for endpoint in {each.model_dump_json(): each for each in map(config.endpoint_of, JudgeRole)}.values():
        async with _handshake_client(config, endpoint, _root(endpoint.base_url)) as outer:
            found |= await ask_special_tokens(outer, endpoint)
    return frozenset(found)


async def ask_endpoints(config: JudgeConfig) -> list[str]:
    """The models of a judge, after each has written a token. Raises as `with_models`, and JudgeError for a refusal."""
    named = await with_models(config)
    answered: dict[str, str] = {}
    for role in JudgeRole:
        endpoint = named.endpoint_of(role)
        for url in endpoint.each_url:
            where = f"{endpoint.model} at {url}"
            if where not in answered:
                await _ask_for_a_token(named, endpoint, url)
                answered[where] = endpoint.model or ""
    return list(answered)


async def _ask_for_a_token(config: JudgeConfig, endpoint: EndpointConfig, url: str) -> None:
    async with _client(config, endpoint, url) as client:
        try:
            await client.complete(CANARY, seconds=_HANDSHAKE.attempt)
        except ChatFault as fault:
            if not fault.busy and fault.fault is not Fault.UNREADABLE:
                where = f"{endpoint.model} at {url}"
                raise JudgeError(
                    f"{where} lists its models and completes nothing: {fault}; see that it runs"
                ) from None


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _handshake_client(config: JudgeConfig, endpoint: EndpointConfig, url: str) -> JsonClient:
    return JsonClient(
        url,
        what="judge.endpoint.base_url",
        allowed_hosts=allowed_hosts(config),
        token=secret(endpoint.api_key_env, "api_key_env"),
        retry_policy=_HANDSHAKE,
    )


async def _with_model(config: JudgeConfig, endpoint: EndpointConfig) -> EndpointConfig:
    """The endpoint with the model that each of its replicas serves, and the shortest context."""
    found: list[Served] = []
    for url in endpoint.each_url:
        found.append(await _ask_model(config, endpoint, url))
        if found[-1].model != found[0].model:
            raise ConfigError(
                f"judge.endpoint.replicas: {url} serves {found[-1].model}, {endpoint.base_url} {found[0].model}; "
                "replicas serve the same"
            )
    lengths = [served.max_length for served in found if served.max_length is not None]
    context = endpoint.context or min(lengths, default=None)
    return endpoint.model_copy(update={"model": found[0].model, "context": context})


async def _ask_model(config: JudgeConfig, endpoint: EndpointConfig, url: str) -> Served:
    expected = endpoint.weights
    inner = _handshake_client(config, endpoint, url)
    outer = _handshake_client(config, endpoint, _root(url))
    async with inner, outer:
        try:
            served = await ask_what_is_served(inner, outer if expected else None, endpoint.model)
        except InferenceError as fault:
            raise JudgeError(f"the judge's endpoint does not answer: {fault}") from None
    named = served.weights or (expected if expected and served.model.endswith(expected) else None)
    if expected is not None and named != expected:
        found = f"weights {named}" if named else f"{served.model} and names no weights"
        raise RunMismatchError(
            f"{url} serves {found}, judge.endpoint.weights expects {expected}; serve that model, or "
            f"name it NAME-{expected} (vLLM: --served-model-name)"
        )
    return served


def _client(config: JudgeConfig, endpoint: EndpointConfig, url: str) -> ChatClient:
    key = secret(endpoint.api_key_env, "api_key_env")
    return ChatClient(
        url,
        model=endpoint.model or "",
        api_key=key,
        connections=config.concurrency + _SPARE_CONNECTIONS,
        allowed_hosts=allowed_hosts(config),
        template=endpoint.template,
        context=endpoint.context,
    )


def allowed_hosts(config: JudgeConfig) -> frozenset[str]:
    """The hosts that the config allows; without a list those that it names."""
    if config.allowed_hosts is not None:
        return frozenset(config.allowed_hosts)
    urls = {url for role in JudgeRole for url in config.endpoint_of(role).each_url}
    return frozenset(host for url in urls if (host := urlsplit(url).hostname))
