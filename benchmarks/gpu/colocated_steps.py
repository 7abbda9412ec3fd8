"""A real vLLM on the trainer's GPU: it answers while awake, with the weights of now, and gives the GPU back asleep."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from benchmarks.gpu.made_up import job_of
from benchmarks.gpu.part import PartContext
from benchmarks.gpu.role_steps import idle
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.inference.stepped import SteppedEngine
from scope_selfplay.plan.memory import GIB
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Colocated, Rows, StepResult, in_groups
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.passes import RewardedRollout, TrainingRow

SHARE = 0.4
"""Of the GPU, for vLLM."""
DRIFT = 0.02
"""The most by which vLLM's log-probabilities may differ from the trainer's, on average."""
PROMPT, SAMPLED, READ = 40, 64, 2000
"""Tokens: of a prompt, of a sample, and of each of the prompts by which reading is measured."""


def sleeping(context: PartContext) -> None:
    import torch

    policy = context.random_policy(context.scale.whole)
    settings = SolverConfig(steps=2, batch=4, group_size=4, save_every=100, max_prompt=2048, max_response=512)
    model = ModelConfig(engine="vllm_colocated", vllm_memory=SHARE)
    job = job_of(policy, context.folder / "solver", settings, model)
    with job.ranks:
        trained = load(job)
        source = SteppedEngine(job.codec, identity="", max_length=job.max_length, temperature=1.0)
        engine = _Watched(source, policy, model, job.max_length, rank=0)
        rollouts = _Rollouts(source, settings.group_size)
        TrainingLoop(job, trained, engine, rollouts.sample_step).run()
    lines, total = read_rows(context.folder / "solver" / "metrics.jsonl"), torch.cuda.mem_get_info()[1]
    given_back = (min(engine.free) - max(rollouts.free)) / GIB
    drift = max(line["sampling_drift"] for line in lines)
    context.note(
        given_back_gib=given_back,
        sampling_drift=drift,
        transfer_seconds=engine.woken[-1],
        sleep_seconds=engine.asleep[-1],
        sampled_per_second=rollouts.rates[-1],
        read_per_second=rollouts.reading[-1],
        step_seconds=lines[-1]["step_seconds"],
    )
    # The cache, which is most of vLLM's share, is there for the rollouts alone.
    least = 0.5 * SHARE * total / GIB - 8
    context.claim(given_back > least, f"asleep it gives back {given_back:.0f} GiB, not {least:.0f}")
    context.claim(drift < DRIFT, f"sampling drift is {drift:.3f}; expected less than {DRIFT}")


class _Watched(Colocated):
    """Free memory before each waking, seconds of waking with new weights, and of falling asleep, a step each."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.free: list[int] = []
        self.woken: list[float] = []
        self.asleep: list[float] = []

    def take(self, model: Any, identity: str) -> None:
        import torch

        # What torch keeps for itself is no room for others.
        torch.cuda.empty_cache()
        begins = idle()
        self.free.append(torch.cuda.mem_get_info()[0])
        super().take(model, identity)
        self.woken.append(idle() - begins)

    def serve(self, sampled: "Future[Any]") -> None:
        ended: list[float] = []
        sampled.add_done_callback(lambda _: ended.append(perf_counter()))
        super().serve(sampled)
        self.asleep.append(idle() - ended[0])


class _Rollouts:
    """Samples all rollouts of a step side by side, then reads as many long prompts; keeps tokens per second."""

    def __init__(self, source: SteppedEngine, group: int) -> None:
        self._source = source
        self._group = group
        self.free: list[int] = []
        self.rates: list[float] = []
        self.reading: list[float] = []

    async def sample_step(
        self, records: Sequence[str], step: int, sampled: Callable[[Rows], None]
    ) -> StepResult:
        import torch

        count = len(records) * self._group
        prompts = [tuple(range(100 + place, 100 + place + PROMPT)) for place in range(count)]
        begins = perf_counter()
        samples = await asyncio.gather(
            *(self._source.generate(Generate(prompt, SAMPLED), (step, prompt[0])) for prompt in prompts)
        )
        self.rates.append(sum(len(each.ids) for each in samples) / (perf_counter() - begins))
        self.free.append(torch.cuda.mem_get_info()[0])
        self.reading.append(await self._read(step, count))
        rewarded = zip(prompts, samples, strict=True)
        rollouts = [_rewarded(prompt, sample, place) for place, (prompt, sample) in enumerate(rewarded)]
        return StepResult(in_groups(rollouts, self._group), {})

    async def _read(self, step: int, count: int) -> float:
        # Each begins with tokens of its own, so that none finds another's prefix in the cache.
        prompts = [(1000 * step + place, *range(100, 99 + READ)) for place in range(count)]
        begins = perf_counter()
        await asyncio.gather(
            *(self._source.generate(Generate(each, 1), (step, "read", each[0])) for each in prompts)
        )
        return count * READ / (perf_counter() - begins)


def _rewarded(prompt: tuple[int, ...], sample: Sample, place: int) -> RewardedRollout:
    ids, logprobs = list(sample.ids), list(sample.logprobs)
    return RewardedRollout([TrainingRow(list(prompt), ids, [1] * len(ids), logprobs)], float(place % 2))
