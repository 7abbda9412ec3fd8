"""What samples from a policy: an engine in this process, or a partner that is served elsewhere; and its prompt format.

The one place where a run's settings become engines, for stages that only sample and for the policy in training.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scope_selfplay.config import ModelConfig, PartnerConfig, PartnersConfig, RunConfig
from scope_selfplay.dialects import dialect
from scope_selfplay.episodes import PolicyFormat, RolloutLimits
from scope_selfplay.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.draws import LARGE_VOCABULARY
from scope_selfplay.inference.sampling_processes import SamplingProcesses
from scope_selfplay.inference.served_model import Served, ServedModel, ask_what_is_served
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role
from scope_selfplay.store.weights import Policy
from scope_selfplay.wire.guarded_http import secret
from scope_selfplay.wire.json_client import JsonClient, RetryPolicy
from scope_selfplay.wire.replicas import ReplicatedClient

if TYPE_CHECKING:
    from scope_selfplay.inference.in_process import InProcessModel
    from scope_selfplay.inference.sampling_processes import SpreadModel

WEIGHT_SERVER_RETRIES = RetryPolicy(deadline=600.0, attempt=900.0, attempts=None, max_response=64 << 20)
# At the start somebody may be watching: a wrong URL should not look like a long wait.
_HANDSHAKE = RetryPolicy(deadline=30.0, attempt=30.0, attempts=None)


def policy_format_for(
    context: RunContext, codec: ChatCodec, role: Role, checkpoint: str, *, greedy: bool = False
) -> PolicyFormat:
    model = context.config.model
    family = dialect(model.dialect, model.earlier_thinking)
    return PolicyFormat(codec, family, checkpoint, context.limits(role), greedy)


def in_process_engine(
    context: RunContext, codec: ChatCodec, role: Role, model: Any, *, identity: str, frozen: bool = False
) -> "InProcessModel | SpreadModel":
    """What samples from `model`, a causal language model, by the run's settings; it is not copied if `frozen`.

    An engine in this process, and where the run has sampling processes one in each of them.
    """
    from scope_selfplay.inference.in_process import InProcessModel

    config, spread = context.config, context.sampling
    share = spread.share if spread is not None else 1
    exact = samples_exactly(config.model, len(codec.tokenizer))
    options: dict[str, Any] = {
        "slots": -(-config.model.slots // share),
        "max_length": _max_length(config, context.limits(role)),
        "temperature": config.sampling.temperature,
        "top_p": config.sampling.top_p,
        "deterministic": exact,
        "packed": not exact and not config.model.lora.rank,
        "share": share,
    }
    on_tokens = context.activity.sampled
    engine = InProcessModel(model, codec, identity=identity, frozen=frozen, on_tokens=on_tokens, **options)
    return engine if spread is None else spread.spread(engine, options)


def samples_exactly(model: ModelConfig, vocabulary: int) -> bool:
    """Whether what shares its batch decides no token: model.deterministic, chosen by its cost where that is `auto`."""
    if model.deterministic == "auto":
        return vocabulary <= LARGE_VOCABULARY or model.processes > 1
    return model.deterministic


def sampling_processes(
    config: RunConfig, on_outage: Callable[[InferenceError], None]
) -> SamplingProcesses | None:
    """Those of model.processes beside this one, which begin to load what they need; None on a GPU, and for one alone.

    Raises ConfigError in one of several ranks.
    """
    from scope_selfplay.inference.memory import sees_gpu

    if config.model.processes == 1:
        return None
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        raise ConfigError(
            f"model.processes ({config.model.processes}) spreads the sampling of one process over cores, and {ranks} "
            "processes train here, each of which samples its share; use model.processes: 1"
        )
    return None if sees_gpu() else SamplingProcesses(config.model.processes - 1, on_outage)


def partner_of(config: RunConfig, role: Role) -> PartnerConfig | None:
    """Where a frozen policy of this role is served; None where it runs in this process."""
    partner = config.partners.solver if role is Role.SOLVER else config.partners.challenger
    return partner if partner.base_url is not None else None


def served_engine(
    context: RunContext,
    codec: ChatCodec,
    role: Role,
    policy: Policy,
    *,
    on_outage: Callable[[InferenceError], None],
    say: Callable[[str], None],
) -> ServedModel:
    """The partner of a role, after a handshake: it must serve `policy`.

    Raises ConfigError for a URL, key or model; InferenceError where no server answers; RunMismatchError for other
    weights.
    """
    partner = partner_of(context.config, role)
    assert partner is not None
    name = f"partners.{role.value}"
    return engine_at(context, codec, role, partner, policy, name=name, on_outage=on_outage, say=say)


def engine_at(
    context: RunContext,
    codec: ChatCodec,
    role: Role,
    partner: PartnerConfig,
    policy: Policy | None,
    *,
    name: str,
    on_outage: Callable[[InferenceError], None],
    say: Callable[[str], None],
) -> ServedModel:
    """What samples in a role at a server; it must serve `policy`, and whatever it serves is taken where that is None.

    `name` is what named the server. Raises as `served_engine`.
    """
    settings = context.config.partners
    # In a thread of its own: the caller may or may not have an event loop running.
    with ThreadPoolExecutor(max_workers=1) as pool:
        found = pool.submit(asyncio.run, ask_replicas(name, partner, settings)).result()
    for url, each in zip(partner.each_url, found, strict=True):
        remark = None if policy is None else check_served(each, policy, f"{name}: {url}")
        if remark is not None:
            say(remark)
    served, concurrency = found[0], settings.concurrency * len(found)
    retry_policy = RetryPolicy(
        deadline=settings.outage,
        attempt=settings.call,
        attempts=None,
        max_response=64 << 20,
        connections=concurrency,
    )
    return ServedModel(
        lambda: ReplicatedClient(
            [_client(name, partner, url, retry_policy, say) for url in partner.each_url]
        ),
        served,
        codec,
        identity=served.identity if policy is None else policy.identity,
        max_length=_max_length(context.config, context.limits(role)),
        temperature=context.config.sampling.temperature,
        top_p=context.config.sampling.top_p,
        concurrency=concurrency,
        takes_priority=partner.priority,
        on_outage=on_outage,
        on_tokens=context.activity.sampled,
    )


def check_served(served: Served, policy: Policy, where: str) -> str | None:
    """None where the weights are known to be equal, else a remark on what was compared instead.

    A server that names no weights (vLLM) must serve the checkpoint's folder, or serve it under a name that ends
    with the hash of its weights. Raises RunMismatchError.
    """
    if served.weights is not None:
        if served.weights != policy.weights:
            raise RunMismatchError(
                f"{where} serves weights {served.weights}, {policy.identity} is expected; serve {policy.path}"
            )
        return None
    if served.model.endswith(policy.weights):
        return f"{where} names no weights; trusted by its model's name, {served.model}"
    if served.root is not None and Path(served.root).resolve() == policy.path.resolve():
        return f"{where} names no weights; trusted by its model's folder, {served.root}"
    raise RunMismatchError(
        f"{where} serves {served.model} from {served.root}, {policy.identity} is expected; serve "
        f"{policy.path}, or name the model {policy.identity} (vLLM: --served-model-name)"
    )


async def ask_replicas(name: str, partner: PartnerConfig, settings: PartnersConfig) -> list[Served]:
    """What each server of a frozen policy says that it serves.

    Raises as `ask_partner`, and ConfigError where they differ.
    """
    found: list[Served] = []
    for url in partner.each_url:
        found.append(await ask_partner(name, partner.model_copy(update={"base_url": url}), settings))
        first, this = (
            f"{each.identity} with a context of {each.max_length}" for each in (found[0], found[-1])
        )
        if this != first:
            raise ConfigError(
                f"{name}.replicas: {url} serves {this}, {partner.base_url} {first}; replicas serve the same"
            )
    return found


async def ask_partner(name: str, partner: PartnerConfig, settings: PartnersConfig) -> Served:
    """What the server of a frozen policy says that it serves. Raises ConfigError, InferenceError."""
    assert partner.base_url is not None
    retry_policy = replace(_HANDSHAKE, deadline=min(_HANDSHAKE.deadline, settings.outage))
    root = partner.base_url.rstrip("/").removesuffix("/v1")
    async with (
        _client(name, partner, partner.base_url, retry_policy) as client,
        _client(name, partner, root, retry_policy) as outer,
    ):
        return await ask_what_is_served(client, outer, partner.model)


def _client(
    name: str,
    partner: PartnerConfig,
    url: str,
    retry_policy: RetryPolicy,
    say: Callable[[str], None] = lambda text: None,
) -> JsonClient:
    host = urlsplit(url).hostname
    return JsonClient(
        url,
        what=f"{name}.base_url",
        allowed_hosts={host} if host else (),
        token=secret(partner.api_key_env, f"{name}.api_key_env"),
        retry_policy=retry_policy,
        say=say,
    )


def _max_length(config: RunConfig, limits: RolloutLimits) -> int:
    return min(config.model.max_length, limits.max_response + (limits.max_prompt or 0))


def weight_server(
    model: ModelConfig, codec: ChatCodec, on_outage: Callable[[InferenceError], None], **options: Any
) -> ServedModel:
    """What asks the vLLM of `vllm_server` for turns. Raises ConfigError where no vLLM answers as one."""
    base = vllm_base(model)
    host = urlsplit(base).hostname

    def client(path: str) -> JsonClient:
        hosts = {host} if host else ()
        return JsonClient(
            base + path, what="model.vllm_url", allowed_hosts=hosts, retry_policy=WEIGHT_SERVER_RETRIES
        )

    async def what_is_served() -> Any:
        async with client("/v1") as api, client("") as outer:
            return await ask_what_is_served(api, outer, None)

    return ServedModel(
        lambda: ReplicatedClient([client("/v1")]),
        asyncio.run(what_is_served()),
        codec,
        **options,
        concurrency=WEIGHT_SERVER_RETRIES.connections,
        on_outage=on_outage,
    )


def vllm_base(model: ModelConfig) -> str:
    """Where the vLLM of engine vllm_server is, without the path of its API."""
    assert model.vllm_url is not None, "the config checks it"
    return model.vllm_url.rstrip("/").removesuffix("/v1")
