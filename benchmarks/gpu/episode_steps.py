"""Whole steps with real episodes: a random policy that searches and answers, the embedded world, its judge.

The Challenger's reward is itself generation (the frozen Solver answers its tasks), so only the Solver's share outside
generation and update is held to a limit.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.embedded_speech import write_tasks
from benchmarks.gpu.made_up import Stopped
from benchmarks.gpu.part import PartContext
from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.memory import GIB
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import train_challenger, train_solver
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import Stage

STEPS = 2
OUTSIDE = 0.10
"""The largest share of a Solver's step that may be neither generation nor update."""


class _UntilMeasured(Progress):
    """Ends a stage after its last step, before it is saved: that would take longer than both."""

    def advance(self, done: int, note: str = "") -> None:
        if done == STEPS:
            raise Stopped


def steps(context: PartContext, role: str, engine: str = "in_process") -> None:
    """Of a role; the second one counts, as the first loads kernels."""
    policy, size = context.speaking_policy(), context.scale.episodes
    world = _open(context, policy, context.folder / "world")
    tasks = write_tasks(world.documents, context.folder / "given.jsonl")
    run = _open(context, policy, context.folder / "run", f"solver.tasks={tasks}", f"model.engine={engine}")
    stage = Stage(role)
    train = train_solver if stage is Stage.SOLVER else train_challenger
    with suppress(Stopped):
        train(run, 1)
    line = read_rows(run.folder.stage(1, stage).metrics)[-1]
    outside = _note(context, line, line["completion_tokens"] * size.batch * context.scale.group)
    context.claim(line["searches"] > 0, "no episode searched")
    if stage is Stage.SOLVER and context.scale.on_gpu:
        context.claim(
            outside <= OUTSIDE,
            f"{outside:.1%} of a step is neither generation nor update; {OUTSIDE:.0%} may be",
        )


def _note(context: PartContext, line: dict[str, Any], tokens: float) -> float:
    """Returns the share of the step outside generation and update."""
    import torch

    step, generation, update = line["step_seconds"], line["rollout_seconds"], line["update_seconds"]
    outside = 1 - (generation + update) / step
    context.note(
        step_seconds=step,
        tokens=tokens,
        sampled_per_second=tokens / generation,
        trained_per_second=tokens / update,
        generation_share=generation / step,
        update_share=update / step,
        outside_share=outside,
        searches=line["searches"],
        kl=line["kl"],
    )
    if torch.cuda.is_available():
        context.note(peak_gib=torch.cuda.max_memory_allocated() / GIB)
    return outside


def _open(context: PartContext, policy: Path, root: Path, *overrides: str) -> Run:
    """A run of two steps per role in the embedded world."""
    size = context.scale.episodes
    response = size.length - 120
    settings = f"""
        name=gpu domain=embedded iterations=1 seed=4 judge.gates=[] model.max_length={size.length}
        model.slots={size.slots} search.topk=1 search.max_tokens=48 corpus.sample=40 challenger.rollouts=2
        challenger.max_prompt=120 challenger.max_response={response}
        solver.max_prompt=64 solver.max_response={response}
    """
    for role in ("challenger", "solver"):
        settings += f"""
            {role}.steps={STEPS} {role}.batch={size.batch} {role}.group_size={context.scale.group}
            {role}.save_every=100
        """
    given = [*settings.split(), f"model.path={policy}", *overrides]
    return open_run(load_config(None, given), root, _UntilMeasured())
