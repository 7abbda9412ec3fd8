"""What samples from a policy: an engine in this process, or a partner that is served elsewhere; and its prompt format.

The one place where a run's settings become engines, for stages that only sample and for the policy in training.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_selfplay.base.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.base.values import Role
from scope_selfplay.config.base import ServedConfig
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.inference.checkpoints import sampling_device
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.draws import LARGE_VOCABULARY
from scope_selfplay.inference.processes import SamplingProcesses
from scope_selfplay.inference.served import Served, ServedModel, ask_servers
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.net.guard import secret
from scope_selfplay.net.loops import at_once
from scope_selfplay.policy.episodes import RolloutLimits
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.store.folder import Policy

if TYPE_CHECKING:
    from scope_selfplay.inference.in_process import InProcessModel
    from scope_selfplay.inference.processes import SpreadModel

SERVER_RETRIES = RetryPolicy(deadline=600.0, attempt=900.0, attempts=None, max_response=64 << 20)
"""A turn may take 900 seconds; a server that is down is waited for 600, then the stage stops and can be resumed."""


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
        "packed": not exact and not config.model.lora_rank,
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
    if config.model.processes == 1:
        return None
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        raise ConfigError(
            f"model.processes ({config.model.processes}) spreads the sampling of one process over cores, and {ranks} "
            "processes train here, each of which samples its share; use model.processes: 1"
        )
    on_cpu = sampling_device("auto") == "cpu"
    return SamplingProcesses(config.model.processes - 1, on_outage) if on_cpu else None


def partner_of(config: RunConfig, role: Role) -> ServedConfig | None:
    """Where a frozen policy of this role is served; None where it runs in this process."""
    partner = config.partners.solver if role is Role.SOLVER else config.partners.challenger
    return partner if partner.base_url is not None else None


def engine_at(
    context: RunContext,
    codec: ChatCodec,
    role: Role,
    partner: ServedConfig,
    policy: Policy | None,
    *,
    name: str,
    on_outage: Callable[[InferenceError], None],
    say: Callable[[str], None],
) -> ServedModel:
    """What samples in a role at a server; it must serve `policy`, and whatever it serves is taken where that is None.

    `name` is what named the server. Raises ConfigError for a URL, key or model; InferenceError where no server answers;
    RunMismatchError for other weights.
    """
    found = ask_replicas(name, partner)
    for url, each in zip(partner.each_url, found, strict=True):
        remark = None if policy is None else check_served(each, policy, f"{name}: {url}")
        if remark is not None:
            say(remark)
    if role in context.config.partners.keep_form and any(each.weights is not None for each in found):
        raise ConfigError(
            f"{name}: `scope serve-model` keeps no turn in form (partners.keep_form); serve with a vLLM"
        )
    # Prompts are cut for the shortest context of all servers.
    served = min(found, key=lambda each: each.max_length or sys.maxsize)
    retry_policy = replace(SERVER_RETRIES, connections=context.config.partners.concurrency)
    return ServedModel(
        lambda: _client(f"{name}.base_url", partner, retry_policy, say=say),
        served,
        codec,
        identity=served.identity if policy is None else policy.identity,
        max_length=_max_length(context.config, context.limits(role)),
        temperature=context.config.sampling.temperature,
        top_p=context.config.sampling.top_p,
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


def ask_replicas(name: str, partner: ServedConfig, seconds: float = 30.0) -> list[Served]:
    """What each server of a frozen policy says that it serves, within so many seconds. Raises ConfigError, also where
    they differ, and InferenceError.
    """
    what = f"{name}.base_url"
    each = (partner.model_copy(update={"base_url": url}) for url in partner.each_url)
    # At the start somebody may be watching: a wrong URL should not look like a long wait.
    handshake = RetryPolicy(deadline=seconds, attempt=seconds, attempts=None, cuts_last=True)
    clients = [_client(what, one, handshake) for one in each]
    return at_once(ask_servers(clients, partner.model, what=what))


def _client(what: str, served: ServedConfig, retry_policy: RetryPolicy, **more: Any) -> Client:
    """`what` is the setting of its URL, in messages."""
    token = secret(served.api_key_env, what.replace("base_url", "api_key_env"))
    return Client(*served.each_url, what=what, retry_policy=retry_policy, token=token, **more)


def _max_length(config: RunConfig, limits: RolloutLimits) -> int:
    return min(config.model.max_length, limits.max_response + (limits.max_prompt or 0))


def weight_server(
    model: ModelConfig, codec: ChatCodec, on_outage: Callable[[InferenceError], None], **options: Any
) -> ServedModel:
    """What asks the vLLM of `vllm_server` for turns. Raises ConfigError where no vLLM answers as one."""
    server = ServedConfig(base_url=f"{vllm_base(model)}/v1")
    connect = partial(_client, "model.vllm_url", server, SERVER_RETRIES)
    (served,) = at_once(ask_servers([connect()], None, what="model.vllm_url"))
    return ServedModel(connect, served, codec, **options, on_outage=on_outage)


def vllm_base(model: ModelConfig) -> str:
    """Where the vLLM of engine vllm_server is, without the path of its API."""
    assert model.vllm_url is not None, "the config checks it"
    return model.vllm_url.rstrip("/").removesuffix("/v1")
