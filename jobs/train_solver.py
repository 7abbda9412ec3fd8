"""Stage C: GRPO of the Solver from S_{N-1} on the kept tasks.

python -m jobs.train_solver --config FILE --root FOLDER --iteration N [--attempt A]
    [--processes P] [--set KEY=VALUE ...]
"""

from typing import Any

import click

from jobs.stage_job import StageArguments, do_stage, launch_ranks, processes_option, run_job, stage_options
from scope_selfplay.store import Stage


@click.command()
@stage_options
@processes_option
def main(processes: int, **options: Any) -> None:
    """Stage C: GRPO of the Solver from S_{N-1} on the kept tasks."""
    arguments = StageArguments(**options)
    launch_ranks(arguments, Stage.SOLVER, processes)
    from scope_selfplay.stages import train_solver

    do_stage(arguments, Stage.SOLVER, train_solver)


if __name__ == "__main__":
    run_job(main, "train_solver")
