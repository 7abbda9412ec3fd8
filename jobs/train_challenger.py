"""Stage A: GRPO of the Challenger from C_{N-1} against the frozen Solver S_{N-1}.

python -m jobs.train_challenger --config FILE --root FOLDER --iteration N [--attempt A]
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
    """Stage A: GRPO of the Challenger from C_{N-1} against the frozen Solver S_{N-1}."""
    arguments = StageArguments(**options)
    launch_ranks(arguments, Stage.CHALLENGER, processes)
    from scope_selfplay.stages import train_challenger

    do_stage(arguments, Stage.CHALLENGER, train_challenger)


if __name__ == "__main__":
    run_job(main, "train_challenger")
