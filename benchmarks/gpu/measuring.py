"""What a training step costs: seconds of its parts, and memory beside what `scope plan` says."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.gpu.context import PartContext
from scope_selfplay.plan.memory import GIB, Trainer, gpu_peaks
from scope_selfplay.plan.size import Assumptions, model_size
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop

WITHIN = 0.10
"""How far a measured peak may be from a planned one."""


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
    context.findings.note(planned_gib=round(planned, 3))
    if not torch.cuda.is_available():
        return
    free, total = torch.cuda.mem_get_info()
    measured = torch.cuda.max_memory_allocated() / GIB
    reserved = torch.cuda.memory_reserved()
    context.findings.note(
        peak_gib=round(measured, 3),
        peak_reserved_gib=round(torch.cuda.max_memory_reserved() / GIB, 3),
        outside_torch_gib=round((total - free - reserved) / GIB, 3),
        peak_over_plan=round(measured / planned, 3),
    )
    context.findings.claim(
        abs(measured / planned - 1) <= WITHIN,
        f"tensors took {measured:.1f} GiB at most, `scope plan` says {planned:.1f}; expected within {WITHIN:.0%}",
    )


def planned_gib(job: GrpoJob, *, sharded: bool, offloaded: bool) -> float:
    """GiB of tensors on the GPU in an update; nothing samples beside made-up rollouts."""
    size = model_size(str(job.start.base))
    trainer = Trainer(job.options.model, job.settings, 1, size, Assumptions(), under_fsdp=sharded)
    parts = gpu_peaks(trainer, offloaded=offloaded)["updating"]
    return sum(gib for name, gib in parts.items() if name not in ("context", "engine"))
