"""The engine that samples from the policy in training, and TRL's settings for it.

`model.engine`:
    in_process       a copy of the trained model, `InProcessModel`
    vllm_colocated   TRL's vLLM on the trainer's own GPU, driven request by request, asleep outside of rollouts
    vllm_server      a vLLM elsewhere, over HTTP; TRL sends it the weights (NCCL)

TRL 1.16 with `use_vllm` transfers the weights into vLLM once a step, before it asks for rollouts. Into a vLLM elsewhere
the first process alone transfers them, and TRL lets the others go on meanwhile: they wait here.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from scope_selfplay.config import ModelConfig, SolverConfig, TrainConfig
from scope_selfplay.config.rewards import ExplicitReward
from scope_selfplay.engines import in_process_engine, policy_format_for, samples_exactly
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.errors import ConfigError, InferenceError
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.sampling_processes import SpreadModel
from scope_selfplay.inference.served_model import ServedModel, ask_what_is_served
from scope_selfplay.inference.stepped_engine import SteppedEngine
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role, Rollout
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.learning_rate import warmup_steps
from scope_selfplay.training.losses import Loss, loss_of
from scope_selfplay.training.ranks import COLLECTIVE_SECONDS, check_engine, check_shares
from scope_selfplay.training.rows import RewardedRollout, rewarded_rollout
from scope_selfplay.training.sharding import sharded, trainer_devices
from scope_selfplay.wire.json_client import JsonClient, RetryPolicy
from scope_selfplay.wire.replicas import ReplicatedClient

T = TypeVar("T")

SERVER_RETRIES = RetryPolicy(deadline=600.0, attempt=900.0, attempts=None, max_response=64 << 20)


def sampling_source(job: GrpoJob, model: Any) -> Any:
    """What the rollouts are sampled from: `model` itself for `in_process`, else a PolicyModel over vLLM.

    Raises ConfigError where vLLM is not installed or no vLLM answers as one.
    """
    options: dict[str, Any] = {
        "identity": "",
        "max_length": job.max_length,
        "temperature": job.options.temperature,
        "top_p": job.options.top_p,
    }
    match job.options.model.engine:
        case "in_process":
            return model
        case "vllm_colocated":
            if find_spec("vllm") is None:
                raise ConfigError(
                    "model.engine: vllm_colocated needs vLLM, which is not installed; pip install 'scope-selfplay[gpu]'"
                )
            return SteppedEngine(job.codec, **options)
        case "vllm_server":
            served = asyncio.run(_what_is_served(job.options.model))
            return ServedModel(
                lambda: ReplicatedClient([_client(job.options.model, "/v1")]),
                served,
                job.codec,
                **options,
                concurrency=SERVER_RETRIES.connections,
                on_outage=job.callbacks.on_outage,
            )


@dataclass(frozen=True)
class PolicyInTraining:
    """The policy in training and how it is prompted."""

    engine: InProcessModel | SpreadModel | SteppedEngine | ServedModel
    policy_format: PolicyFormat

    def refresh_weights(self, step: int) -> None:
        """Sample the coming step from the weights as they are now; once a step, however often it is asked for."""
        identity = f"{self.policy_format.checkpoint}@{step}"
        if self.engine.identity != identity:
            self.engine.refresh(identity)

    def all_sampled(self, rollouts: Sequence[Rollout]) -> None:
        """A step has all its rollouts, in the order of its records, and needs no more turns: they are only judged.

        An engine on the trainer's own GPU makes way for what needs no rewards.
        """
        if isinstance(self.engine, SteppedEngine):
            self.engine.finish([self.rewarded(rollout, None) for rollout in rollouts])

    def rewarded(self, rollout: Rollout, reward: float | None) -> RewardedRollout:
        """The rows that a rollout is trained on, with its reward."""
        return rewarded_rollout(rollout, reward, per_turn=self.policy_format.dialect.drops_earlier_thinking)


def policy_in_training(
    model: Any, job: GrpoJob, context: RunContext, role: Role, checkpoint: str
) -> PolicyInTraining:
    """`model` is the model in training, or a PolicyModel that samples from it.

    Raises ConfigError where the former is sharded.
    """
    engine = model
    if isinstance(model, SteppedEngine | ServedModel):
        model.on_tokens = context.activity.sampled
    else:
        check_engine(job.options.model.engine, job.ranks.processes if sharded() else 1)
        engine = in_process_engine(context, job.codec, role, model, identity=checkpoint)
    return PolicyInTraining(engine, policy_format_for(context, job.codec, role, checkpoint))


def await_weights(source: Any, trainer: Any) -> None:
    """Returns when all processes may sample from the weights that TRL has transferred."""
    if isinstance(source, ServedModel):
        # A process that asks before the first one has transferred all weights samples from those of the step before.
        trainer.accelerator.wait_for_everyone()


def run_rollouts(source: Any, rollouts: Coroutine[Any, Any, T], trainer: Any) -> T:
    """One step's rollouts under their engine, on the thread of the trainer."""
    if isinstance(source, SteppedEngine):
        from scope_selfplay.training.colocated import awake, fall_asleep

        def use(sampled: Any) -> None:
            fall_asleep(trainer.vllm_generation)
            trainer.refer_early(sampled)

        with awake(trainer.vllm_generation) as engine:
            return source.run(rollouts, engine, use)
    return asyncio.run(rollouts)


@contextmanager
def weight_transfer_errors(model: ModelConfig) -> Iterator[None]:
    """Turns TRL's errors into an InferenceError when the vLLM of engine vllm_server is down."""
    try:
        yield
    except Exception as error:
        # TRL raises the errors of `requests` as they are, and bare ones for what the server or NCCL reports.
        requests = any(parent.__module__.startswith("requests.") for parent in type(error).__mro__)
        bare = type(error) in (Exception, RuntimeError)
        outside = requests or bare or isinstance(error, ConnectionError | TimeoutError)
        if model.engine != "vllm_server" or not outside:
            raise
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InferenceError(
            f"model.vllm_url: {vllm_base(model)} did not take the weights ({line}); see that vLLM runs there with a "
            "weight-transfer engine, then run the same command again"
        ) from error


def guard_weight_transfer(trainer: Any, model: ModelConfig) -> None:
    """Makes a trainer raise InferenceError when the vLLM of engine vllm_server is down at a later step."""
    if model.engine != "vllm_server":
        return
    transfer = trainer.vllm_generation.sync_weights

    def guarded() -> None:
        with weight_transfer_errors(model):
            transfer()

    trainer.vllm_generation.sync_weights = guarded


async def _what_is_served(model: ModelConfig) -> Any:
    async with _client(model, "/v1") as client, _client(model, "") as outer:
        return await ask_what_is_served(client, outer, None)


def _client(model: ModelConfig, path: str) -> JsonClient:
    base = vllm_base(model)
    host = urlsplit(base).hostname
    return JsonClient(
        base + path, what="model.vllm_url", allowed_hosts={host} if host else (), retry_policy=SERVER_RETRIES
    )


def trl_config(job: GrpoJob) -> Any:
    from trl import GRPOConfig

    settings, loss, lineage = job.settings, loss_of(job.settings), job.start.lineage
    return GRPOConfig(
        output_dir=str(job.folder.work),
        max_steps=settings.steps,
        # A step is one pass to TRL; `updates` cuts it.
        per_device_train_batch_size=check_shares(settings, job.ranks.processes),
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=settings.group_size,
        max_completion_length=settings.max_response,
        learning_rate=settings.learning_rate,
        warmup_steps=warmup_steps(settings),
        max_grad_norm=settings.clip_norm,
        # The trainer has a reference of its own.
        beta=0.0,
        loss_type="grpo" if loss.sequence else settings.loss,
        importance_sampling_level="sequence" if loss.sequence else "token",
        epsilon=loss.clip_low,
        epsilon_high=loss.trl_high,
        scale_rewards=_scale_of(settings, loss),
        # The KL of the papers (equation 3) is not weighed by the importance ratio.
        use_bias_correction_kl=False,
        temperature=job.options.temperature,
        shuffle_dataset=False,
        seed=job.options.seed % 2**31,
        # A loss that is not finite ends the training instead of looking like the one before.
        logging_nan_inf_filter=False,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_every,
        # Old checkpoints are removed by `Checkpoints`, which looks at them first.
        save_total_limit=None,
        ddp_timeout=COLLECTIVE_SECONDS,
        report_to=list(job.options.tracking.report_to) or "none",
        run_name=f"{lineage.run}-{lineage.iteration:02d}-{lineage.role}",
        log_completions=job.options.tracking.log_completions,
        # Kept as files: what TRL would print goes to stdout, which is for data.
        num_completions_to_print=0,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **trainer_devices(exact=samples_exactly(job.options.model, len(job.codec.tokenizer))),
        **trl_generation(job.options.model, job.max_length),
    )


def _scale_of(settings: TrainConfig, loss: Loss) -> str:
    """What an advantage is divided by: the std of its group, that of the step (GDPO, whose sums are 0 on average in
    every group), or nothing.
    """
    if not loss.scaled:
        return "none"
    reward = settings.reward if isinstance(settings, SolverConfig) else None
    by_step = isinstance(reward, ExplicitReward) and reward.aggregation == "normalize_then_sum"
    return "batch" if by_step else "group"


def trl_generation(model: ModelConfig, max_length: int) -> dict[str, Any]:
    """The engine's part of TRL's settings."""
    if model.engine == "in_process":
        return {}
    # Rollouts of several turns are put together too late for TRL's correction.
    shared = {"use_vllm": True, "vllm_importance_sampling_correction": False}
    if model.engine == "vllm_server":
        return {**shared, "vllm_mode": "server", "vllm_server_base_url": vllm_base(model)}
    return {
        **shared,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": model.vllm_memory,
        "vllm_enable_sleep_mode": True,
        "vllm_max_model_length": max_length,
        # Requests arrive one by one: the ranks of a tensor-parallel group could not agree on their order.
        "vllm_tensor_parallel_size": 1,
    }


def vllm_base(model: ModelConfig) -> str:
    """Where the vLLM of engine vllm_server is, without the path of its API."""
    assert model.vllm_url is not None, "the config checks it"
    return model.vllm_url.rstrip("/").removesuffix("/v1")
