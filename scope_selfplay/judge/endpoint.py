"""A judge's endpoints: opened in each event loop by the first call in it, closed with the loop."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from scope_selfplay.base.errors import InferenceError, JudgeError, RunMismatchError
from scope_selfplay.base.values import Fault
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.inference.served import ask_servers
from scope_selfplay.judge.fences import ask_special_tokens
from scope_selfplay.net.chat import CANARY, ONCE, ChatClient, ChatFault
from scope_selfplay.net.client import RetryPolicy
from scope_selfplay.net.guard import secret
from scope_selfplay.net.loops import PerLoop, all_of

# At the start somebody may be watching.
_HANDSHAKE = replace(ONCE, attempt=30.0)


def endpoints_per_loop(
    config: JudgeConfig, say: Callable[[str], None] = lambda text: None
) -> dict[JudgeRole, PerLoop[ChatClient]]:
    """The endpoint of every role, opened in each event loop that asks; `config` has a model for every one.

    Raises ConfigError for a URL, a host or a missing key.
    """

    patience = config.patience
    policy = replace(ONCE, attempt=patience, deadline=patience, connections=config.concurrency)

    def made(endpoint: EndpointConfig) -> ChatClient:
        return _client(endpoint, *endpoint.each_url, retry_policy=policy, patience=patience, say=say)

    shared = {name: PerLoop(partial(made, endpoint)) for name, endpoint in _distinct(config).items()}
    for endpoint in _distinct(config).values():
        # Made once here, so that a mistake shows at the start.
        made(endpoint)
    return {role: shared[config.endpoint_of(role).model_dump_json()] for role in JudgeRole}


def _distinct(config: JudgeConfig) -> dict[str, EndpointConfig]:
    """The endpoints of all roles, each of them once."""
    return {each.model_dump_json(): each for each in map(config.endpoint_of, JudgeRole)}


async def with_models(config: JudgeConfig, seconds: float = _HANDSHAKE.attempt) -> JudgeConfig:
    """The config with model and context of every endpoint, each of which is to answer within so many seconds.

    Raises ConfigError for a model that an endpoint does not serve, or a choice between several; RunMismatchError for
    other weights than an endpoint must serve; JudgeError for an endpoint that does not answer.
    """
    distinct = _distinct(config)
    answers = await all_of(_with_model(each, seconds) for each in distinct.values())
    named = dict(zip(distinct, answers, strict=True))
    by_role = {role: named[config.endpoint_of(role).model_dump_json()] for role in JudgeRole}
    return config.model_copy(update={"endpoints": by_role})


async def special_tokens(config: JudgeConfig) -> frozenset[str]:
    """What the endpoints' tokenizers take for control, as far as they tell. Raises ConfigError."""
    found: set[str] = set()
    for endpoint in _distinct(config).values():
        async with _client(endpoint, endpoint.each_url[0]) as client:
            found |= await ask_special_tokens(client, endpoint)
    return frozenset(found)


async def ask_endpoints(config: JudgeConfig, seconds: float = _HANDSHAKE.attempt) -> list[str]:
    """The models of a judge, all asked at once, after each has written a token, which may take longer.

    Raises as `with_models`, and JudgeError for a refusal.
    """
    named = await with_models(config, seconds)

    async def asked(endpoint: EndpointConfig, url: str) -> str:
        where = f"{endpoint.model} at {url}"
        async with _client(endpoint, url) as client:
            try:
                await client.complete(CANARY)
            except ChatFault as fault:
                if not fault.busy and fault.fault is not Fault.UNREADABLE:
                    raise JudgeError(
                        f"{where} lists its models and completes nothing: {fault}; see that it runs"
                    ) from None
        return where

    return await all_of(asked(each, url) for each in _distinct(named).values() for url in each.each_url)


async def _with_model(endpoint: EndpointConfig, seconds: float) -> EndpointConfig:
    """The endpoint with the model that all of its servers serve, and the shortest context."""
    expected = endpoint.weights
    policy = replace(_HANDSHAKE, attempt=seconds)
    clients = [_client(endpoint, url, retry_policy=policy) for url in endpoint.each_url]
    try:
        found = await ask_servers(
            clients, endpoint.model, what="judge.endpoint.base_url", with_weights=expected is not None
        )
    except InferenceError as fault:
        raise JudgeError(f"the judge's endpoint does not answer: {fault}") from None
    served = found[0]
    named = served.weights or (expected if expected and served.model.endswith(expected) else None)
    if expected is not None and named != expected:
        told = f"weights {named}" if named else f"{served.model} and names no weights"
        raise RunMismatchError(
            f"{endpoint.each_url[0]} serves {told}, judge.endpoint.weights expects {expected}; serve that model, or "
            f"name it NAME-{expected} (vLLM: --served-model-name)"
        )
    lengths = [each.max_length for each in found if each.max_length is not None]
    context = endpoint.context or min(lengths, default=None)
    return endpoint.model_copy(update={"model": served.model, "context": context})


def _client(
    endpoint: EndpointConfig, *urls: str, retry_policy: RetryPolicy = _HANDSHAKE, **more: Any
) -> ChatClient:
    return ChatClient(
        *urls,
        what="judge.endpoint.base_url",
        model=endpoint.model or "",
        token=secret(endpoint.api_key_env, "api_key_env"),
        template=endpoint.template,
        context=endpoint.context,
        retry_policy=retry_policy,
        **more,
    )
