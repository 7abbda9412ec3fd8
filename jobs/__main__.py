"""`python -m jobs NAME`: one Kubernetes Job, one process. It reads folders and writes one folder, its manifest last.

    probe-volume, fetch-model, build-index, warm-start    before a run: what it needs on the volume
    train-challenger, make-tasks, train-solver, compare   the stages of an iteration
    run-controller                                        creates the others, stage after stage
    pull, keep                                            before and around them, with cluster.store

Everything that they do is in `scope_selfplay`; the same functions run in `scope run`. A stage goes so, and ends with:

1. config and prompts are checked, and that the run was begun with them   64
2. a stage whose manifest exists is done                                   0
3. the stages before it must be done                                      64
4. the servers that it needs answer                                       75, or 64 for the wrong ones
5. the work; the manifest last                                            75, 143 on SIGTERM, 1 our bug

What is there already and whole is left alone by all of them; what was stopped goes on.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scope_selfplay.base.errors import CheckpointError, ConfigError, ExitCode, OutsideError, UserError
from scope_selfplay.base.terminal import (
    PATH,
    Progress,
    end_on_sigterm,
    quiet_libraries,
    run_command,
    shown_progress,
    with_options,
)
from scope_selfplay.store.folder import Stage, is_whole, publish_model

if TYPE_CHECKING:
    from scope_selfplay.config.run import RunConfig

_BROUGHT = (
    "the other Jobs of prepare bring what cluster.prepare names, anything else is to be copied there; this goes on by "
    "itself"
)
_say = partial(click.echo, err=True)

# Where the manifests mount things; every option can name another place.
_RUN = with_options(
    click.option("--config", type=PATH, default="/etc/scope/run/run.yaml", help="The run's config."),
    click.option("--root", type=PATH, default="/data/runs", help="Runs lie in ROOT/NAME."),
    click.option("--prompts", type=PATH, default="/etc/scope/prompts", help="Mounted prompt packs."),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
)
_STAGE = with_options(
    _RUN,
    click.option("--iteration", type=click.IntRange(min=0), required=True),
    click.option("--attempt", type=click.IntRange(min=1), default=1),
)
_PROCESSES = click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    envvar="SCOPE_PROCESSES",
    show_envvar=True,
    help="Processes on this node, one for each GPU.",
)

_STORED = with_options(
    click.option("--store", required=True, metavar="URL", help="The object store of the run."),
    click.option("--volume", type=PATH, default="/data", help="This pod's own disk."),
)
_PATIENCE = click.option("--patience", type=float, default=600.0, help="Seconds for what is fetched.")


@click.group(context_settings={"show_default": True})
@click.pass_context
def jobs(context: click.Context) -> None:
    """The Jobs of a run on Kubernetes."""
    # The hub's client reads once, when it is loaded, whether it may ask the hub.
    if context.invoked_subcommand != "fetch-model":
        quiet_libraries()


@jobs.command()
@_STAGE
@click.option("--shard", metavar="I/N", help="Make the tasks of worker I of N, from 0; publishes nothing.")
@click.option("--collect", is_flag=True, help="Collect what the workers made, and publish it.")
def make_tasks(shard: str | None, collect: bool, **options: Any) -> None:
    """The stage `tasks`: C_N writes tasks over fresh documents until enough are kept; iteration 0: the held-out tasks.

    Each document has one worker as its owner.
    """
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


@jobs.command()
@_STAGE
def compare(**options: Any) -> None:
    """The stage `compare`: S_N answers the held-out tasks and is compared with the checkpoints before it."""
    do_stage(Stage.COMPARE, **options)


@jobs.command()
@_STAGE
@_PROCESSES
def train_challenger(**options: Any) -> None:
    """The stage `challenger`: GRPO of the Challenger from C_{N-1} against the frozen Solver S_{N-1}."""
    _train(Stage.CHALLENGER, **options)


@jobs.command()
@_STAGE
@_PROCESSES
def train_solver(**options: Any) -> None:
    """The stage `solver`: GRPO of the Solver from S_{N-1} on the kept tasks."""
    _train(Stage.SOLVER, **options)


def _train(stage: Stage, processes: int, **options: Any) -> None:
    from jobs.launch import ranks_here, run_as_ranks, sharding_environment

    if (node := ranks_here(processes)) is not None:
        from scope_selfplay.config.load import load_config
        from scope_selfplay.config.training import check_engine, check_shares

        config = load_config(options["config"], options["overrides"])
        check_shares(getattr(config, stage.value), node.world)
        check_engine(config.model.engine, node.world if sharding_environment(node) else 1)
        run_as_ranks(node)
    do_stage(stage, **options)


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


@jobs.command()
@click.option("--folder", type=PATH, default="/data")
@click.option("--message", type=PATH, default="/dev/termination-log")
def probe_volume(folder: Path, message: Path) -> None:
    """Say in one line what the volume can do of what a run needs; 64 where no run can work on it.

    It is the log's line, and the message that the pod ends with.
    """
    from scope_selfplay.cluster.probe import check_volume

    line = ""
    try:
        line = check_volume(folder, lambda text: None)
    except ConfigError as error:
        line = str(error)
        raise
    finally:
        if message.exists():
            with suppress(OSError):
                message.write_text(line)
    click.echo(line)


@jobs.command(name="pull")
@_STORED
@click.option("--records", multiple=True, help="runs/R/iteration-NN/STAGE, without its checkpoint.")
@click.option("--work", help="The same, of what its newest attempt has so far, if there is any.")
@click.option("--maybe", multiple=True, help="As PATHS, if it is there.")
@click.argument("paths", nargs=-1)
def pull_units(
    store: str,
    volume: Path,
    records: tuple[str, ...],
    work: str | None,
    maybe: tuple[str, ...],
    paths: tuple[str, ...],
) -> None:
    """Bring to this pod's disk what is stored of PATHS, such as models/X, runs/R/begin or a stage's checkpoint.

    Raises OutsideError for what is not there yet.
    """
    from scope_selfplay.store.object_store import Unit, pull

    with shown_progress() as progress:
        bring = partial(pull, store, volume=volume, progress=progress)
        found = {path: bring(Unit.of(path)) for path in (*maybe, *paths)}
        for path in records:
            found[path] = bring(Unit.of(path), wanted=lambda name: "/checkpoint/" not in name)
        if missing := [path for path in (*paths, *records) if not found[path]]:
            raise OutsideError(f"{', '.join(missing)}: not in {store} yet; {_BROUGHT}")
        if work:
            bring(Unit.of(work), of_work=True)


@jobs.command(name="keep", context_settings={"ignore_unknown_options": True})
@_STORED
@click.option("--attempt", type=click.IntRange(min=1), help="Of a stage.")
@click.option("--worker", type=click.IntRange(min=0), help="Of several that share the stage.")
@click.argument("unit")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def keep_unit(
    store: str, volume: Path, unit: str, command: tuple[str, ...], attempt: int | None, worker: int | None
) -> None:
    """Run COMMAND, store what it makes of UNIT, and end as it does; 75 where that cannot be stored."""
    from scope_selfplay.store.object_store import Unit, keep

    sys.exit(keep(store, Unit(unit), volume, command, _say, attempt=attempt, worker=worker))


@jobs.command()
@click.option("--model", required=True, help="Repository of the model, such as Qwen/Qwen3-8B.")
@click.option("--revision", default="main", help="Commit, so that it stays what it is.")
@click.option("--folder", type=PATH, required=True, help="Where it goes on the volume.")
@click.option("--token-file", type=PATH, default="/etc/scope/hub/token")
def fetch_model(model: str, revision: str, folder: Path, token_file: Path) -> None:
    """Bring one model from the hub to the volume: safetensors and tokenizer only, whole or not at all, with
    checksums."""
    if is_whole(folder, model, revision):
        _say(f"{folder}: is there already")
        return
    part = folder.with_name(f".{folder.name}.part")
    token = token_file.read_text().strip() if token_file.is_file() else None
    commit = _download(model, revision, part, token)
    from scope_selfplay.inference.checkpoints import policy_path

    try:
        policy_path(str(part))
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {str(error).removeprefix(f'{part}: ')}") from None
    shutil.rmtree(part / ".cache", ignore_errors=True)
    publish_model(part, folder, model=model, revision=revision, commit=commit)
    _say(f"{folder}: {model} at {commit}")


def _download(model: str, revision: str, part: Path, token: str | None) -> str:
    """Raises ConfigError for what the hub does not have or does not give, OutsideError for a hub that is down."""
    from huggingface_hub import HfApi, errors, snapshot_download

    wanted = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
    try:
        commit = str(HfApi(token=token).model_info(model, revision=revision).sha)
        snapshot_download(model, revision=commit, local_dir=part, allow_patterns=wanted, token=token)
    except errors.OfflineModeIsEnabled:
        raise ConfigError(
            f"HF_HUB_OFFLINE is set: {model} cannot be fetched; set it to 0 for this job"
        ) from None
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ConfigError(
            f"{model} at {revision}: the hub does not give it ({type(error).__name__}); correct the name, or accept "
            "its licence and put a token into the Secret hub-token"
        ) from None
    except Exception as error:  # noqa: BLE001 - the wall to the hub's client, whose HTTP library changes
        line = " ".join(str(error).split())[:200]
        raise OutsideError(
            f"{model}: the hub did not answer well ({type(error).__name__}: {line}); run this again"
        ) from None
    return commit


@jobs.command()
@click.option("--index", type=PATH, required=True, help="Folder of the index.")
@click.option("--source", type=PATH, required=True, help="Corpus.")
@_PATIENCE
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def build_index(index: Path, source: Path, patience: float, options: tuple[str, ...]) -> None:
    """`scope index build`, with OPTIONS after --, of what is still on its way to the volume.

    It waits a while for corpus, encoder and vectors, then gives its place to others and ends with 75.
    """
    from retrieval.commands import build

    brought = [Path(value) for name, value in pairwise(options) if name in ("--encoder", "--vectors")]
    needed = [source, *(path for path in brought if path.is_absolute())]
    _wait_for(lambda: [path for path in needed if not path.exists()], patience)
    build.main([str(source), str(index), *options], standalone_mode=False)


def _wait_for(find_missing: Callable[[], Sequence[object]], patience: float) -> None:
    """Each is there when it is whole. Raises OutsideError for what is not there in time."""
    end = time.monotonic() + patience
    while missing := find_missing():
        if time.monotonic() >= end:
            raise OutsideError(f"{', '.join(map(str, missing))}: not there yet; {_BROUGHT}")
        time.sleep(min(10.0, max(0.1, end - time.monotonic())))


@jobs.command()
@_PROCESSES
@click.option("--out", type=PATH, required=True, help="Folder of the trained model.")
@click.option("--trajectories", type=PATH, multiple=True, required=True, help="JSON lines with `messages`.")
@click.option("--start", type=PATH, required=True, help="Model that learns from them.")
@click.option(
    "--dialect",
    "family",
    type=click.Choice(["qwen2.5", "qwen3", "olmo3"]),
    default="qwen3",
    help="The run's model.dialect, in which the calls of trajectories must read as searches.",
)
@click.option("--max-length", type=click.IntRange(64), default=32_768, help="Tokens of a row.")
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=1.0)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1e-5)
@click.option("--batch", type=click.IntRange(1), default=32)
@click.option("--micro-batch", type=click.IntRange(1), default=4)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the order of trajectories.")
def warm_start(
    processes: int,
    out: Path,
    trajectories: tuple[Path, ...],
    start: Path,
    family: str,
    max_length: int,
    **training: Any,
) -> None:
    """SFT before iteration 1, on trajectories of a stronger model."""
    from jobs.launch import ranks_here, run_as_ranks
    from scope_selfplay.stages.warm_start import WarmStart

    how = WarmStart(**training)
    if (node := ranks_here(processes)) is not None:
        run_as_ranks(node)
    from scope_selfplay.dialects.families import dialect
    from scope_selfplay.stages.warm_start import learn_from_trajectories

    with shown_progress() as progress:
        losses = learn_from_trajectories(
            trajectories,
            start,
            out,
            family=dialect(family),
            max_length=max_length,
            settings=how,
            say=progress.say,
        )
        if losses:
            progress.say(f"{out}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")


@jobs.command()
@_RUN
@click.option(
    "--only-iteration", type=click.IntRange(min=1), help="This iteration alone; those before must be done."
)
@click.option(
    "--job", envvar="SCOPE_JOB", help="Name of the Job that owns everything; this pod's own by default."
)
@click.option("--namespace", "-n", help="This pod's own, or that of the kubeconfig, without it.")
@_PATIENCE
@click.option(
    "--metrics", type=click.IntRange(1, 65535), help="Port of /metrics for Prometheus; none without it."
)
def run_controller(
    only_iteration: int | None, job: str | None, namespace: str | None, metrics: int | None, **options: Any
) -> None:
    """Bring a run to its end on this cluster: one stage's Job after the other, with the servers that it needs.

    Runs in a pod of a Job <run>-controller-HASH (or <run>-iNN-controller-HASH); outside the cluster with KUBECONFIG and
    --job.
    """
    from scope_selfplay.cluster.probe import check_volume
    from scope_selfplay.config.load import load_config
    from scope_selfplay.driver.kubernetes import control
    from scope_selfplay.driver.parts import read_inputs

    patience = options.pop("patience")
    settings = None
    # What cannot be read is said below; what is on its way, exit 75 waits for.
    with suppress(UserError):
        settings = load_config(options["config"], options["overrides"])
    if settings is not None:
        bring_inputs(settings, options["root"], patience)
    suffix = "-controller" if only_iteration is None else f"-i{only_iteration:02d}-controller"
    with shown_progress() as progress:
        check_volume(options["root"], progress.say)
        run = job and re.sub(rf"{suffix}(-[0-9a-f]{{8}})?$", "", job)
        read = partial(read_inputs, **options, name=run, progress=progress)
        own = job or read().config.name + suffix
        where = {"root": options["root"], "job": own, "namespace": namespace, "metrics": metrics}
        code = control(read, **where, only_iteration=only_iteration, say=progress.say)
    sys.exit(exit_code_of(code))


def bring_inputs(config: "RunConfig", root: Path, patience: float) -> None:
    """Wait for what no stage can begin without; where it is in a store, what the controller reads of it comes here."""
    from scope_selfplay.cluster.pods import stored
    from scope_selfplay.cluster.prepare import awaited, inputs_of
    from scope_selfplay.store.object_store import ObjectFolder, Unit, pull

    if not (store := config.cluster.store):
        _wait_for(lambda: [path for path in awaited(config) if not Path(path).exists()], patience)
        return

    def is_stored(path: str) -> bool:
        return ObjectFolder(store, Progress(), Unit.of(path).name).index() is not None

    _wait_for(lambda: [path for path in map(stored, awaited(config)) if not is_stored(path)], patience)
    bring = partial(pull, store, volume=root.parent, progress=Progress())
    has_begun = bring(Unit(f"runs/{config.name}/begin"))
    for path in inputs_of(config, begins=not has_begun):
        bring(Unit.of(stored(path)))


def exit_code_of(verdict: ExitCode) -> ExitCode:
    """A verdict that stays has a code of its own: a controller that crashed (1) is started again, this one is not."""
    return ExitCode.FAILED if verdict is ExitCode.BUG else verdict


if __name__ == "__main__":
    # From the first moment on, also as the first process of a container.
    end_on_sigterm()
    run_command(jobs, "python -m jobs")
