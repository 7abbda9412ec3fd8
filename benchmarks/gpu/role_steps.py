"""One training step per role with made-up rollouts: that it fits, what it costs, and that it begins at M0."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.context import PartContext
from benchmarks.gpu.made_up import NoEngine, Stopped, job_of, sampler_of
from benchmarks.gpu.measuring import StepTimes, note_peak, step_times
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig, TrainConfig
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.loop import TrainingLoop, load

FIRST_KL = 1e-3
ROLES: dict[str, type[TrainConfig]] = {"challenger": ChallengerConfig, "solver": SolverConfig}


def solver(context: PartContext) -> None:
    _train(context, "solver", context.random_policy(context.scale.whole))


def challenger(context: PartContext) -> None:
    _train(context, "challenger", context.random_policy(context.scale.whole))


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


def note_step(context: PartContext, lines: list[dict[str, Any]], tokens: int, times: StepTimes) -> None:
    """Figures of the second step, as the first loads kernels; claims about the first."""
    first, second = lines[0], lines[1]
    inside = second["update_seconds"] - times.reference[1] - times.optimizer[1]
    context.findings.note(
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
    claim = context.findings.claim
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
