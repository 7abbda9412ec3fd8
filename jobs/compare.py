"""Stage D: S_N answers the held-out tasks and is compared with the checkpoints before it.

python -m jobs.compare --config FILE --root FOLDER --iteration N [--attempt A] [--set KEY=VALUE ...]
"""

from typing import Any

import click

from jobs.stage_job import do_stage, run_job, stage_options
from scope_selfplay.store.folder import Stage


@click.command()
@stage_options
def main(**options: Any) -> None:
    """Stage D: S_N answers the held-out tasks and is compared with the checkpoints before it."""
    do_stage(Stage.COMPARE, **options)


if __name__ == "__main__":
    run_job(main, "compare")
