"""What samples from the policy in training. It takes new weights (`take`) once a step, before its rollouts begin.

`model.engine`:
    in_process       a copy of the weights in this process
    vllm_colocated   a vLLM on the trainer's own GPU: awake for the rollouts of a step, asleep in its update
    vllm_server      a vLLM elsewhere, over HTTP; the first rank sends it the weights (TRL's client, over NCCL)

The rollouts of a step run in a thread of their own (`Rollouts`): searches and judgements go on while the caller's
thread has the GPU, for the engine first, and for the reference once all are sampled.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scope_selfplay.base.errors import ConfigError, InferenceError
from scope_selfplay.base.machine import free_port
from scope_selfplay.base.values import Key, Role, Rollout
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import check_engine
from scope_selfplay.inference.checkpoints import stored_dtype
from scope_selfplay.inference.served import ServedModel
from scope_selfplay.inference.stepped import SteppedEngine
from scope_selfplay.rewards.measures import Measures
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import in_process_engine, vllm_base, weight_server
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.passes import RewardedRollout, TrainingRow, rewarded_rollout, rows_from

if TYPE_CHECKING:
    from scope_selfplay.training.model import TrainedModel

T = TypeVar("T")
Rows = Sequence[Sequence[TrainingRow]]
"""The rows of each rollout of a step, group after group."""


class StepResult(NamedTuple):
    """The rollouts of a step with their rewards, group by group, and what its line in metrics.jsonl is made of."""

    groups: Sequence[Sequence[RewardedRollout]]
    metrics: Measures

    @property
    def rollouts(self) -> Sequence[RewardedRollout]:
        return [rollout for group in self.groups for rollout in group]

    @property
    def rows(self) -> Rows:
        return [rollout.rows for rollout in self.rollouts]


def in_groups(rollouts: Sequence[T], size: int) -> list[Sequence[T]]:
    return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]


StepSampler = Callable[[Sequence[str], int, Callable[[Rows], None]], Coroutine[Any, Any, StepResult]]
"""Record ids of a step's groups, its number from 0, and whom to tell of the rows when all rollouts are sampled and only
judged (or nobody: then they are when the rewards are there) -> what was sampled and how it is rewarded."""


class Engine:
    """The engine in this process; without a `source`, which episodes ask for turns, nothing is sampled."""

    def __init__(self, source: Any = None) -> None:
        self.source = source

    def take(self, model: "TrainedModel", identity: str) -> None:
        """Sample from the weights as they are now. All ranks call it, and nothing samples meanwhile."""
        if self.source is not None:
            self.source.refresh(identity)

    def serve(self, sampled: "Future[Any]") -> None:
        """Return when `sampled` is done; what has to work on the caller's thread works here."""
        wait([sampled])


class Colocated(Engine):
    """vLLM's cache takes requests and never answers them while it sleeps. Asleep (level 2) it has no memory at all;
    level 1 would copy weights into the host's, to be overwritten when they wake: every step begins with new ones.
    """

    def __init__(
        self, source: SteppedEngine, start: Path, model: ModelConfig, max_length: int, rank: int
    ) -> None:
        """Raises ConfigError where vLLM is not installed."""
        if find_spec("vllm") is None:
            raise ConfigError(
                "model.engine: vllm_colocated needs vLLM, which is not installed; pip install 'scope-selfplay[gpu]'"
            )
        from vllm import LLM

        super().__init__(source)
        # The external launcher is the one that has started this rank, or nobody.
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for name, value in {**alone, "MASTER_PORT": str(free_port())}.items():
            os.environ.setdefault(name, value)
        self.llm = LLM(
            model=str(start),
            # Requests arrive one by one: the ranks of a tensor-parallel group could not agree on their order.
            tensor_parallel_size=1,
            distributed_executor_backend="external_launcher",
            gpu_memory_utilization=model.vllm_memory,
            max_model_len=max_length,
            # vLLM's own default reserves more than there is beside a trainer.
            max_num_batched_tokens=4096,
            enable_sleep_mode=True,
            seed=rank,
            logprobs_mode="processed_logprobs",
            trust_remote_code=False,
        )
        self.llm.sleep(level=2)

    def take(self, model: "TrainedModel", identity: str) -> None:
        import torch

        torch.cuda.empty_cache()
        self.llm.wake_up(tags=["weights"])
        worker = self.llm.llm_engine.model_executor.driver_worker
        with whole_weights(model) as weights:
            worker.model_runner.model.load_weights(weights)
        self.llm.reset_prefix_cache()
        # What torch keeps of the gathered weights is room for the cache.
        torch.cuda.empty_cache()
        self.llm.wake_up(tags=["kv_cache"])
        super().take(model, identity)

    def serve(self, sampled: "Future[Any]") -> None:
        self.source.serve(self.llm.llm_engine, sampled)
        self.llm.sleep(level=2)


class WeightServer(Engine):
    """Only the first rank speaks to the server of weights; the others gather with it."""

    def __init__(self, source: ServedModel, model: ModelConfig, device: Any, *, leads: bool) -> None:
        """Raises InferenceError where the server is down."""
        super().__init__(source)
        self._model = model
        self._client: Any = None
        if leads:
            from trl.generation.vllm_client import VLLMClient

            with _transfer_errors(model):
                self._client = VLLMClient(base_url=vllm_base(model))
                for adapter in self._client.session.adapters.values():
                    # An update that is asked for again waits for weights that never come.
                    adapter.max_retries = adapter.max_retries.new(total=0)
                self._client.init_communicator(device=device)

    def take(self, model: "TrainedModel", identity: str) -> None:
        with whole_weights(model) as weights:
            if self._client is not None:
                with _transfer_errors(self._model):
                    kind = stored_dtype(model.base)
                    known = [(name, kind, shape) for name, shape in model.shapes()]
                    self._client.update_named_params(known, weights)
                    self._client.reset_prefix_cache()
        super().take(model, identity)


@contextmanager
def whole_weights(model: "TrainedModel") -> Iterator[Iterator[tuple[str, Any]]]:
    """Every weight, whole, in the data type of M0. All ranks gather to the end, also those that need none or failed."""
    import torch

    weights = model.whole_weights(getattr(torch, stored_dtype(model.base)))
    try:
        yield weights
    finally:
        for _ in weights:
            pass


def open_engine(
    job: GrpoJob, model: "TrainedModel", context: RunContext, role: Role, checkpoint: str
) -> Engine:
    """The engine of a role in training, by the run's settings.

    Raises ConfigError where vLLM is not installed, no vLLM answers as one, or an engine in this process would sample
    from a share of a model; InferenceError where a server is down.
    """
    options: dict[str, Any] = {
        "identity": "",
        "max_length": job.max_length,
        "temperature": job.temperature,
        "top_p": job.top_p,
        "on_tokens": context.activity.sampled,
    }
    settings, ranks = job.model, job.ranks
    match settings.engine:
        case "in_process":
            check_engine(settings.engine, ranks.processes if model.placement.sharded else 1)
            source = in_process_engine(context, job.codec, role, model.network, identity=checkpoint)
            return Engine(source)
        case "vllm_colocated":
            stepped = SteppedEngine(job.codec, **options)
            return Colocated(stepped, job.start.weights, settings, job.max_length, ranks.number)
        case "vllm_server":
            served = weight_server(settings, job.codec, on_outage=job.callbacks.on_outage, **options)
            return WeightServer(served, settings, model.placement.device, leads=ranks.leads)


@contextmanager
def _transfer_errors(model: ModelConfig) -> Iterator[None]:
    """Turns TRL's errors into an InferenceError where the vLLM of engine vllm_server is down."""
    try:
        yield
    except Exception as error:
        # TRL raises the errors of `requests` as they are, and bare ones for what the server or NCCL reports.
        requests = any(parent.__module__.startswith("requests.") for parent in type(error).__mro__)
        bare = type(error) in (Exception, RuntimeError)
        if not (requests or bare or isinstance(error, ConnectionError | TimeoutError)):
            raise
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InferenceError(
            f"model.vllm_url: {vllm_base(model)} did not take the weights ({line}); see that vLLM runs there with a "
            "weight-transfer engine, then run the same command again"
        ) from error


class Rollouts:
    """The rollouts and rewards of one step, made in a thread of their own from the moment that this is made."""

    def __init__(self, sample: StepSampler, records: Sequence[str], step: int) -> None:
        self.sampled: Future[Rows | None] = Future()
        """The rows of all rollouts, before they have rewards; None where they were cancelled."""
        self.result: Future[StepResult | None] = Future()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._task = self._loop.create_task(sample(records, step, self._announce))
        threading.Thread(target=self._run, name=f"rollouts of step {step + 1}", daemon=True).start()

    def cancel(self) -> None:
        """From any thread, at any time: both futures are done soon."""
        # A loop that has ended is closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _announce(self, rows: Rows) -> None:
        if not self.sampled.done():
            self.sampled.set_result(rows)

    def _run(self) -> None:
        try:
            with self._runner:
                found = self._loop.run_until_complete(self._task)
            self._announce(found.rows)
            self.result.set_result(found)
        except asyncio.CancelledError:
            self._settle(lambda future: future.set_result(None))
        except BaseException as error:  # noqa: BLE001 - the loop's thread raises it
            fault = error
            self._settle(lambda future: future.set_exception(fault))

    def _settle(self, end: Callable[[Any], None]) -> None:
        for future in (self.sampled, self.result):
            if not future.done():
                end(future)


def sampler_from(
    rollout: Callable[[str, Key], Awaitable[Rollout]],
    reward: Callable[[Sequence[Rollout]], Awaitable[Sequence[float | None]]],
    group_size: int,
) -> StepSampler:
    """Samples by `rollout(record, key)`, then rewards each group by `reward(rollouts)`; None leaves a rollout out."""

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        keys = [(step, record, member) for record in records for member in range(group_size)]
        rollouts = await asyncio.gather(*(rollout(key[1], key) for key in keys))
        sampled(list(map(rows_from, rollouts)))
        groups = in_groups(rollouts, group_size)
        rewards = [each for group in await asyncio.gather(*map(reward, groups)) for each in group]
        rewarded = [rewarded_rollout(*each) for each in zip(rollouts, rewards, strict=True)]
        return StepResult(in_groups(rewarded, group_size), {})

    return sample_step
