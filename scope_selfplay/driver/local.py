"""`scope run`: every stage of every iteration in this process. The same command resumes it."""

import json
from collections.abc import Callable
from contextlib import closing

from scope_selfplay.report.overview import summarise
from scope_selfplay.run.run import Run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.train import train_challenger, train_solver
from scope_selfplay.store.card import CARD, run_card
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import Stage

WORK: dict[Stage, Callable[[Run, int], object]] = {
    Stage.CHALLENGER: train_challenger,
    Stage.TASKS: make_tasks,
    Stage.SOLVER: train_solver,
    Stage.COMPARE: compare,
}
"""The work of each stage, for a run and an iteration."""


def run_all(run: Run) -> dict[str, object]:
    """Run what is missing and return the summary, which every comparison writes anew to `summary.json`."""
    summary: dict[str, object] = {}
    with closing(run):
        for iteration, stage in stages_of(run.config):
            WORK[stage](run, iteration)
            if stage is Stage.COMPARE:
                summary = summarise(run)
                write_atomic(run.folder.summary, json.dumps(summary, indent=1) + "\n")
                write_atomic(run.folder.path / CARD, run_card(run.folder, run.config.name))
                reason = run.stop_reason(iteration) if iteration else None
                if reason is not None:
                    run.progress.say(reason)
                    break
    return summary
