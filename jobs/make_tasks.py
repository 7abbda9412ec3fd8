"""Stage B: C_N writes tasks over fresh documents until enough lie inside the difficulty window of S_{N-1}.

    python -m jobs.make_tasks --config FILE --root FOLDER --iteration N [--attempt A] [--set KEY=VALUE ...]
    python -m jobs.make_tasks ... --shard 0/4          one of four workers; each document has one owner
    python -m jobs.make_tasks ... --collect            puts the workers' tasks together and ends the stage

Iteration 0 makes the held-out tasks.
"""

from functools import partial
from typing import Any

import click

from jobs.stage_job import do_stage, run_job, stage_options
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.store.folder import Stage


@click.command()
@stage_options
@click.option("--shard", metavar="I/N", help="Make the tasks of worker I of N, from 0; publishes nothing.")
@click.option("--collect", is_flag=True, help="Collect what the workers made, and publish it.")
def main(shard: str | None, collect: bool, **options: Any) -> None:
    """Stage B: C_N writes tasks over fresh documents until enough are kept; iteration 0: the held-out tasks."""
    from scope_selfplay.stages.tasks import collect_tasks, make_share, parse_shard

    if shard is not None and collect:
        raise ConfigError("--shard and --collect: one job makes a shard, another collects; give one of them")
    if shard is not None:
        worker = parse_shard(shard)
        do_stage(Stage.TASKS, partial(make_share, shard=worker), worker=f"-{worker}", **options)
    elif collect:
        do_stage(Stage.TASKS, collect_tasks, serves=False, **options)
    else:
        do_stage(Stage.TASKS, **options)


if __name__ == "__main__":
    run_job(main, "make_tasks")
