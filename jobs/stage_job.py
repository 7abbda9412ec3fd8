"""What the stage jobs have in common: one command line, one order of work, one table of exit codes.

python -m jobs.<stage> --config FILE --root FOLDER --iteration N [--attempt A] [--set KEY=VALUE ...]

1. config and prompts are checked, and that the run was begun with them   64
2. a stage whose manifest exists is done                                   0
3. the stages before it must be done                                      64
4. the servers that it needs answer                                       75, or 64 for the wrong ones
5. the work; the manifest last                                            75, 143 on SIGTERM, 1 our bug
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scope_selfplay.base.terminal import end_on_sigterm, quiet_libraries, run_command, shown_progress
from scope_selfplay.store.folder import Stage

if TYPE_CHECKING:
    from jobs.launch import TrainingNode
    from scope_selfplay.config.run import RunConfig

# Where the manifests mount things; every option can name another place.
CONFIG = Path("/etc/scope/run/run.yaml")
PACKS = Path("/etc/scope/prompts")
ROOT = Path("/data/runs")

processes_option = click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    envvar="SCOPE_PROCESSES",
    show_default=True,
    show_envvar=True,
    help="Processes on this node, one for each GPU.",
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which run: its config, its prompts, and its folder."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
        click.option("--prompts", type=path, default=PACKS, show_default=True, help="Mounted prompt packs."),
        click.option("--root", type=path, default=ROOT, show_default=True, help="Runs lie in ROOT/NAME."),
        click.option("--config", type=path, default=CONFIG, show_default=True, help="The run's config."),
    ):
        command = option(command)
    return command


def stage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which run, iteration and attempt."""
    attempt = click.option("--attempt", type=click.IntRange(min=1), default=1, show_default=True)
    iteration = click.option("--iteration", type=click.IntRange(min=0), required=True)
    return run_options(iteration(attempt(command)))


def run_job(command: click.Command, name: str) -> None:
    """The entry point of a job: it ends on SIGTERM from the first moment, also as the first process of a container."""
    end_on_sigterm()
    run_command(command, f"python -m jobs.{name}")


def training_job(stage: Stage, help_text: str) -> click.Command:
    """The command of a Job that trains.

    Several GPUs need several processes: it starts itself once for each, and ends as they ended. SCOPE_PROCESSES (or
    --processes) is the number on this node; several nodes tell themselves apart by SCOPE_NODES, SCOPE_RENDEZVOUS and
    JOB_COMPLETION_INDEX. A process that has RANK is one of those that were started.
    """

    @click.command(help=help_text)
    @stage_options
    @processes_option
    def main(processes: int, **options: Any) -> None:
        from jobs.launch import node_of, sharding_environment

        if "RANK" not in os.environ and (node := node_of(os.environ, processes)).world > 1:
            from scope_selfplay.config.cluster import GRACE
            from scope_selfplay.config.load import load_config
            from scope_selfplay.config.training import check_engine, check_shares

            config = load_config(options["config"], options["overrides"])
            check_shares(getattr(config, stage.value), node.world)
            check_engine(config.model.engine, node.world if sharding_environment(node) else 1)
            run_as_ranks(f"jobs.train_{stage.value}", node, GRACE)
        do_stage(stage, **options)

    return main


def run_as_ranks(name: str, node: "TrainingNode", grace: float) -> NoReturn:
    """Starts this command line once for each rank of this node, sharded over its GPUs, and ends as they ended."""
    from jobs.launch import rank_environments, run_ranks, sharding_environment

    environments = [sharding_environment(node) | rank for rank in rank_environments(node)]
    report = partial(click.echo, err=True)
    ending = run_ranks([sys.executable, "-m", name, *sys.argv[1:]], environments, report, grace=grace)
    if ending.code:
        # The last line of a log is what the controller shows; other ranks may have said theirs later.
        report(f"python -m {name}: {ending.describe(node.world)}")
    sys.exit(ending.code)


def do_stage(
    stage: Stage,
    work: Callable[[Any, int], Any] | None = None,
    *,
    config: Path,
    root: Path,
    prompts: Path,
    iteration: int,
    attempt: int,
    overrides: tuple[str, ...],
    serves: bool = True,
    worker: str = "",
) -> None:
    """Open the run, check that it is this stage's turn, and do its work, or another in its place.

    `serves`: the work asks judge and retriever. `worker` tells those apart that work on one stage together.
    """
    quiet_libraries()
    from scope_selfplay.config.load import load_config
    from scope_selfplay.driver.local import WORK
    from scope_selfplay.run.begin import open_run
    from scope_selfplay.stages.work import check_turn
    from scope_selfplay.training.ranks import ranks

    settings = load_config(config, overrides)
    with shown_progress() as progress:
        run = open_run(settings, root, progress, packs=prompts, attempt=attempt, record=False)
        rank = "" if ranks().leads else f"-rank{ranks().number}"
        run = replace(run, config=_with_own_cache(settings, f"{stage.value}{worker}{rank}"))
        check_turn(run, iteration, stage)
        folder = run.folder.stage(iteration, stage)
        if folder.manifest is not None:
            progress.say(f"{folder.path}: is done already")
        elif serves:
            # Opening the run context is the handshake with the judge and the retriever.
            progress.say(f"judge {run.context.judge.identity}, retriever {run.context.searcher.identity}")
        (work or WORK[stage])(run, iteration)


def _with_own_cache(config: "RunConfig", owner: str) -> "RunConfig":
    """Paid judgements in a file for each stage and worker: SQLite cannot be shared over a network volume."""
    if config.judge.cache is None:
        return config
    path = Path(config.judge.cache)
    cache = str(path.with_name(f"{path.stem}-{owner}{path.suffix}"))
    return config.model_copy(update={"judge": config.judge.model_copy(update={"cache": cache})})
