"""`scope run`: every stage of every iteration in this process. The same command resumes it."""

import json

from scope_selfplay.inspection.summary import summarise
from scope_selfplay.run import Run
from scope_selfplay.stages import compare, make_held_out, make_tasks, train_challenger, train_solver
from scope_selfplay.store import write_atomic
from scope_selfplay.store.card import write_run_card


def run_all(run: Run) -> dict[str, object]:
    """Run what is missing and return the summary, which is also written to `summary.json`."""
    make_held_out(run)
    compare(run, 0)
    for iteration in range(1, run.config.iterations + 1):
        if run.config.stop_after is not None and iteration > run.config.stop_after:
            break
        if not run.config.challenger.frozen:
            train_challenger(run, iteration)
        if run.config.solver.tasks is None:
            make_tasks(run, iteration)
        train_solver(run, iteration)
        compare(run, iteration)
        write_summary(run)
        reason = run.stopped(iteration)
        if reason is not None:
            run.progress.say(reason)
            break
    return write_summary(run)


def write_summary(run: Run) -> dict[str, object]:
    summary = summarise(run)
    write_atomic(run.folder.summary, json.dumps(summary, indent=1) + "\n")
    write_run_card(run.folder, run.config.name)
    return summary
