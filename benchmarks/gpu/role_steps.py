"""One training step per role with made-up rollouts: that it fits, what it costs, and that it begins at M0."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.made_up import NoEngine, Stopped, job_of, sampler_of
from benchmarks.gpu.part import PartContext
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig, TrainConfig
from scope_selfplay.plan.memory import GIB, Trainer, gpu_peaks
from scope_selfplay.plan.size import Assumptions, model_size
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load

FIRST_KL = 1e-3
WITHIN = 0.10
"""How far a measured peak may be from a planned one."""
ROLES: dict[str, type[TrainConfig]] = {"challenger": ChallengerConfig, "solver": SolverConfig}


def whole(context: PartContext, role: str) -> None:
    _train(context, role, context.random_policy(context.scale.whole))


def adapter(context: PartContext) -> None:
    """Of a large model under an adapter, which has no reference model beside it."""
    policy = context.random_policy(context.scale.adapted, shared=False)
    _train(context, "solver", policy, ModelConfig(lora_rank=context.scale.rank))


def settings_of(context: PartContext, role: str, *, steps: int, save_every: int) -> TrainConfig:
    scale, lengths = context.scale, context.scale.lengths[role]
    return ROLES[role](
        steps=steps,
        batch=scale.batch,
        group_size=scale.group,
        save_every=save_every,
        max_prompt=lengths.prompt,
        max_response=lengths.completion,
    )


def note_step(context: PartContext, lines: list[dict[str, Any]], tokens: int, times: "StepTimes") -> None:
    """Figures of the second step, as the first loads kernels; claims about the first."""
    first, second = lines[0], lines[1]
    inside = second["update_seconds"] - times.reference[1] - times.optimizer[1]
    context.note(
        tokens=float(tokens),
        step_seconds=second["step_seconds"],
        reference_seconds=times.reference[1],
        optimizer_seconds=times.optimizer[1],
        trained_per_second=tokens / inside,
        reference_per_second=tokens / times.reference[1],
        padding=second["padding"],
        first_kl=first["kl"],
        first_grad_norm=first["grad_norm"],
        second_kl=second["kl"],
    )
    claim = context.claim
    claim(abs(first["kl"]) < FIRST_KL, f"KL from M0 at step 1 is {first['kl']:g}; expected about 0")
    claim(first["grad_norm"] > 0, "step 1 has no gradient")
    claim(first["learning_rate"] > 0, "step 1 has learning rate 0")


def _train(context: PartContext, role: str, policy: Path, model: ModelConfig | None = None) -> None:
    """Two steps; the third is never made, so nothing is saved."""
    lengths = context.scale.lengths[role]
    job = job_of(
        policy, context.folder / "training", settings_of(context, role, steps=3, save_every=100), model
    )

    def stop(_: Any, step: int) -> None:
        if step == 2:
            raise Stopped

    with suppress(Stopped), job.ranks:
        sample = sampler_of(lengths, context.scale.group)
        loop = TrainingLoop(job, load(job), NoEngine(stop), sample)
        times = step_times(loop)
        loop.run()
    rows = context.scale.batch * context.scale.group
    note_step(context, read_rows(job.folder.metrics), rows * sum(lengths), times)
    note_peak(context, job)


@dataclass
class StepTimes:
    """Seconds, one entry a step."""

    reference: list[float] = field(default_factory=lambda: [0.0])
    optimizer: list[float] = field(default_factory=list)


def step_times(loop: TrainingLoop) -> StepTimes:
    """Watches the reference and the optimizer of a training from now on; each begins and ends with an idle GPU, so that
    its seconds are its own.
    """
    times, refer, begun = StepTimes(), loop.model.refer, [0.0]

    def timed(batch: Any) -> Any:
        begins = idle()
        found = refer(batch)
        times.reference[-1] += idle() - begins
        return found

    def ended(*_: Any) -> None:
        times.optimizer.append(idle() - begun.pop())
        times.reference.append(0.0)

    loop.model.refer = timed
    loop.optimizer.register_step_pre_hook(lambda *_: begun.append(idle()))
    loop.optimizer.register_step_post_hook(ended)
    return times


def idle() -> float:
    """The time when the GPU has done all that it was told to do."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


def note_peak(context: PartContext, job: GrpoJob, *, sharded: bool = False, offloaded: bool = False) -> None:
    """The most that tensors took on the GPU since the process began, beside the plan for the same job.

    The plan's share for CUDA and fragments is noted beside it and left out of the comparison.
    """
    import torch

    planned = planned_gib(job, sharded=sharded, offloaded=offloaded)
    context.note(planned_gib=round(planned, 3))
    if not torch.cuda.is_available():
        return
    free, total = torch.cuda.mem_get_info()
    measured = torch.cuda.max_memory_allocated() / GIB
    reserved = torch.cuda.memory_reserved()
    context.note(
        peak_gib=round(measured, 3),
        peak_reserved_gib=round(torch.cuda.max_memory_reserved() / GIB, 3),
        outside_torch_gib=round((total - free - reserved) / GIB, 3),
        peak_over_plan=round(measured / planned, 3),
    )
    context.claim(
        abs(measured / planned - 1) <= WITHIN,
        f"tensors took {measured:.1f} GiB at most, `scope plan` says {planned:.1f}; expected within {WITHIN:.0%}",
    )


def planned_gib(job: GrpoJob, *, sharded: bool, offloaded: bool) -> float:
    """GiB of tensors on the GPU in an update; nothing samples beside made-up rollouts."""
    size = model_size(str(job.start.base))
    trainer = Trainer(job.model, job.settings, 1, size, Assumptions(), under_fsdp=sharded)
    parts = gpu_peaks(trainer, offloaded=offloaded)["updating"]
    return sum(gib for name, gib in parts.items() if name not in ("context", "engine"))
