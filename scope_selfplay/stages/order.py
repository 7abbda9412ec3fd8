"""Whether it is a stage's turn."""

from scope_selfplay.errors import RunMismatchError, UserError
from scope_selfplay.run import Run
from scope_selfplay.store import Stage
from scope_selfplay.store.folders import stages_of


def check_turn(run: Run, iteration: int, stage: Stage) -> None:
    """Raises UserError when the run has no such stage or was stopped before it, RunMismatchError when one before it is
    not done.
    """
    stages = stages_of(run.config)
    if (iteration, stage) not in stages:
        last = max(number for number, _ in stages)
        raise UserError(
            f"iteration {iteration} {stage.value}: this run has no such stage; its config has iterations 0 to {last}"
            f", challenger.frozen={str(run.config.challenger.frozen).lower()} and solver.tasks="
            f"{run.config.solver.tasks or 'null'}"
        )
    for number, before in stages[: stages.index((iteration, stage))]:
        folder = run.folder.stage(number, before)
        if not (folder.path / "manifest.json").exists():
            raise RunMismatchError(
                f"iteration {iteration} {stage.value}: {folder.path} is not finished; run iteration {number} "
                f"{before.value} first"
            )
        reason = run.stopped(number) if before is Stage.COMPARE and number < iteration else None
        if reason is not None:
            raise UserError(f"iteration {iteration} {stage.value}: {reason}")
