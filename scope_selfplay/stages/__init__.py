"""The stages of an iteration: each reads folders, writes one folder, and publishes its manifest last.

    make_held_out (iteration 0) -> train_challenger (A) -> make_tasks (B) -> train_solver (C) -> compare (D)

`stage_runner` does what all of them share, `shards` spreads task making over several workers.

A stage whose manifest.json exists is not run again. A stage that was killed goes on: task making keeps every
finished candidate, training goes on from its newest checkpoint.
"""

from scope_selfplay.stages.comparison import compare
from scope_selfplay.stages.task_making import make_held_out, make_tasks
from scope_selfplay.stages.training import train_challenger, train_solver

__all__ = ["compare", "make_held_out", "make_tasks", "train_challenger", "train_solver"]
