"""A run on this machine. `scope run` does every stage in this process, with `--gpus` stages, servers and ranks have
processes of their own: two hands of the one driver. The same command goes on."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import folder_lock, memory_limit
from scope_selfplay.base.terminal import Progress, received_signals
from scope_selfplay.cluster.pods import ManifestContext
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.follow import ENDS_WITHIN, LOCK, nvidia_smi
from scope_selfplay.driver.loop import Controller, Hand, drive
from scope_selfplay.driver.node import NodeHand
from scope_selfplay.driver.observed import step_of
from scope_selfplay.driver.parts import Action, Create, Inputs, steps_of
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.plan.placement import NodePlacement, Slots, place
from scope_selfplay.plan.preflight import examine_before_begin
from scope_selfplay.report.overview import summarise
from scope_selfplay.run.begin import open_run, say_changes
from scope_selfplay.run.run import Run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.train import train_challenger, train_solver
from scope_selfplay.store.card import CARD, run_card
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, parse_manifest

_ROUND = 1.0
"""Seconds between two rounds when nothing happens."""
_RESERVED = 0.5
"""GiB of a GPU that its driver keeps."""


def compare_and_sum_up(run: Run, iteration: int) -> None:
    compare(run, iteration)
    sum_up(run)


def sum_up(run: Run) -> None:
    """What every comparison leaves of the run so far: `summary.json` and the card."""
    write_atomic(run.folder.summary, json.dumps(summarise(run), indent=1) + "\n")
    write_atomic(run.folder.path / CARD, run_card(run.folder, run.config.name))


WORK: dict[Stage, Callable[[Run, int], object]] = {
    Stage.CHALLENGER: train_challenger,
    Stage.TASKS: make_tasks,
    Stage.SOLVER: train_solver,
    Stage.COMPARE: compare_and_sum_up,
}
"""The work of each stage, for a run and an iteration."""


class ThisProcess(Hand):
    """It does a stage where others start one, so that nothing ever runs that could be observed."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def act(self, context: ManifestContext, action: Action) -> None:
        if isinstance(action, Create) and (step := step_of(action.body["metadata"]["labels"])) is not None:
            WORK[step.stage](self._run, step.iteration)


def run_here(run: Run) -> None:
    """Do what is missing of a run. Raises what its stages raise, and RecordError for what is done and was changed."""
    inputs = Inputs(run.config, run.pack.hash, ())
    with closing(run):
        for step in steps_of(run.config):
            # A stage that is done does nothing but hold itself against its manifest.
            if parse_manifest(run.folder.stage(*step).path) is not None:
                WORK[step.stage](run, step.iteration)
        controller = Controller(ThisProcess(run), lambda: inputs, run.folder, time.monotonic)
        while (run_end := controller.look()) is None:
            pass
        run.progress.say(run_end.message)


def read_slots(asked: str) -> Slots:
    """`auto`, a number of GPUs or their numbers, or `cpu:4`. Raises ConfigError for GPUs that are not there."""
    if found := re.fullmatch(r"cpu:([1-9]\d*)", asked):
        return Slots(tuple(range(int(found[1]))))
    if not re.fullmatch(r"auto|[1-9]\d*|\d+(,\d+)+", asked):
        raise ConfigError(
            f"--gpus {asked}: expected auto, a number such as 2, numbers such as 0,1,6, or cpu:4"
        )
    gpus, named = gpus_here(), [int(each) for each in asked.split(",") if each.isdigit()]
    wanted = named if "," in asked else list(gpus)[: named[0] if named else None]
    if not wanted or not {*wanted} <= {*gpus} or (asked.isdigit() and len(wanted) < named[0]):
        there = f"GPUs {', '.join(map(str, gpus))}" if gpus else "no GPU that nvidia-smi names"
        raise ConfigError(f"--gpus {asked}: this machine has {there}; cpu:N takes N slots of its CPUs")
    host = memory_limit() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Slots(tuple(wanted), min(gpus[each] for each in wanted), host / 2**30)


def gpus_here() -> dict[int, float]:
    """Number of each GPU of NVIDIA that this process may use, and the GiB that programs have of it."""
    visible = re.findall(r"\d+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return {
        int(number): float(mebi) / 1024 - _RESERVED
        for number, mebi in nvidia_smi("memory.total")
        if not visible or number in visible
    }


def run_on_node(config: RunConfig, root: Path, asked: str, progress: Progress) -> Run:
    """Bring a run to its end; the run, when every stage is done.

    Raises UserError for what does not fit; ends the process with the exit code of a run that failed or was stopped.
    """
    if sys.platform != "linux":
        raise ConfigError("--gpus: needs Linux, which tells a process of what its children left behind")
    root = root.absolute()
    # Else the size of a model that is gone is asked for.
    policy_path(config.model.path, RunFolder(root / config.name).base)
    placement = place(_with_places(config, root), read_slots(asked))
    progress.say("\n".join(placement.text()))
    # The run keeps the name of its model, and its servers and trainers get the place where that is now.
    own = placement.config.model.model_copy(update={"path": config.model.path})
    begun = placement.config.model_copy(update={"model": own})
    run = open_run(begun, root, progress, examine=partial(examine_before_begin, serves=True))
    say_changes(run)
    inputs = Inputs(placement.config, run.pack.hash, ())
    if code := drive_node(inputs, run.folder, placement, progress.say):
        sys.exit(code)
    sum_up(run)
    return run


def drive_node(
    inputs: Inputs, folder: RunFolder, placement: NodePlacement, say: Callable[[str], None]
) -> int:
    """Bring a run that has begun to its end; the exit code."""
    wake = threading.Event()

    def pause() -> None:
        wake.wait(_ROUND)
        wake.clear()

    folder.driver.mkdir(exist_ok=True)
    lock = folder_lock(folder.path, folder.driver / LOCK, work="driving it", say=say, timeout=ENDS_WITHIN)
    with lock as handle:
        hand = NodeHand(folder, placement, lock=handle, say=say, wake=wake.set)

        def came(signals: list[int]) -> None:
            """The first one ends the run in order, another one at once."""
            wake.set()
            if len(signals) > 1:
                hand.hurry()

        with received_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), came) as received:
            try:
                retriever = inputs.config.cluster.retriever
                if retriever.serve and not Path(retriever.index).exists():
                    command = ["scope", "index", "build", str(folder.config), retriever.index]
                    hand.run("build-index", command, lambda: bool(received))
                controller = Controller(hand, lambda: inputs, folder, time.monotonic, say=say)
                code = drive(controller, pause, lambda: bool(received), say)
            finally:
                hand.release()
    return 128 + received[0] if received else code


def _with_places(config: RunConfig, root: Path) -> RunConfig:
    """A run whose index is not here has one of its own, made of its documents; a moved one has the link to its model,
    and its judge's folder does not depend on where it goes on.
    """
    base, judge = RunFolder(root / config.name).base, config.cluster.judge
    if not Path(config.model.path).is_dir() and base.is_dir():
        model = config.model.model_copy(update={"path": str(base.resolve())})
        config = config.model_copy(update={"model": model})
    if Path(judge.model).is_dir():
        judge = judge.model_copy(update={"model": str(Path(judge.model).absolute())})
        config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"judge": judge})})
    retriever = config.cluster.retriever
    if not retriever.serve or Path(retriever.index).exists():
        return config
    own = retriever.model_copy(update={"index": str(RunFolder(root / config.name).path / "index")})
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"retriever": own})})
