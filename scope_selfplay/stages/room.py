"""Whether a stage has room on its volume, told before its work begins.

Less than the plan expects is a warning, because a plan is an estimate. Less than a training writes for certain, its
checkpoints and weights by the tensors that it starts from, ends it at once instead of after its first hours.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from scope_selfplay.errors import ConfigError, StorageError
from scope_selfplay.inference.checkpoints import parameters_of
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.disk import training_peak
from scope_selfplay.planning.plan import make_plan
from scope_selfplay.planning.sharding import FULL, HALF
from scope_selfplay.run import Run
from scope_selfplay.store import Stage, write_atomic
from scope_selfplay.training.checkpoint import saved_steps
from scope_selfplay.training.job import GrpoJob

_REPLACED = (".staging", ".removing", "final")
"""Of a work folder: what a killed save or export left, and the next one removes first."""


def warn_of_little_room(run: Run, iteration: int, stage: Stage) -> None:
    """Says so, here and to the controller, where less is free than the plan expects of the rest of this stage."""
    folder = run.folder.stage(iteration, stage)
    free, expected = free_bytes(folder.path), _expected(run, iteration, stage) - _size(folder.path)
    if free is None or free >= expected:
        folder.room.unlink(missing_ok=True)
        return
    line = (
        f"{folder.path}: {_shown(free)} are free on its volume, and about {_shown(expected)} are expected to be "
        "written; make room before it is full (`scope plan` shows disk space by stage)"
    )
    run.progress.say(f"warning: {line}")
    # A note is nothing to end a stage for.
    with suppress(StorageError):
        write_atomic(folder.room, line + "\n")


def check_room_to_train(job: GrpoJob) -> None:
    """Raises StorageError where the volume cannot hold what this training writes for certain."""
    folder = job.folder
    free, least = free_bytes(folder.path), least_bytes(job)
    if free is None:
        return
    free += sum(_size(folder.work / name) for name in _REPLACED)
    if free < least:
        raise StorageError(
            f"{folder.path}: cannot be written ({_shown(free)} are free on its volume, and this training writes at "
            f"least {_shown(least)} more); make room, or lower keep_checkpoints, then run again"
        )


def least_bytes(job: GrpoJob) -> int:
    """What is written beside all that lies there, as `planning.disk` has it; of an adapter's checkpoints nothing."""
    settings, saved = job.settings, saved_steps(job.folder.work)
    parameters = parameters_of(job.start.weights)
    export = HALF * parameters
    checkpoint = 0 if job.options.model.lora.rank else 3 * FULL * parameters
    if saved:
        return checkpoint if saved[-1] < settings.steps else export
    return int(training_peak(settings, checkpoint, export))


def free_bytes(place: Path) -> int | None:
    """What this user may still write; None for a volume that does not say."""
    usage = shutil.disk_usage(place)
    return usage.free if usage.total else None


def _expected(run: Run, iteration: int, stage: Stage) -> float:
    """Bytes; 0 where the size of the model is not known."""
    try:
        plan = make_plan(run.config, gates=len(run.gates), assumptions=Assumptions())
    except ConfigError:
        return 0.0
    stages = plan.stages if iteration else plan.once
    return next((each.disk_gib * 2**30 for each in stages if each.stage is stage), 0.0)


def _size(folder: Path) -> int:
    """Of all files below a folder; one that goes meanwhile counts for nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _shown(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
