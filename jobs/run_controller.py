"""Drives a run on Kubernetes: creates one stage's Job after the other, with the servers that it needs.

    python -m jobs.run_controller --config FILE --root FOLDER [--only-iteration NN] [--metrics PORT]
        [--set KEY=VALUE ...]

Runs in a pod of the Job <run>-controller (or <run>-iNN-controller); outside the cluster with KUBECONFIG and --job.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.stage_job import run_job, run_options
from scope_selfplay.base.errors import ExitCode, RunMismatchError, UserError
from scope_selfplay.base.terminal import Progress, quiet_libraries
from scope_selfplay.store.folder import RunFolder

if TYPE_CHECKING:
    from scope_selfplay.driver.loop import Inputs


@click.command()
@run_options
@click.option(
    "--only-iteration", type=click.IntRange(min=1), help="This iteration alone; those before must be done."
)
@click.option(
    "--job", envvar="SCOPE_JOB", help="Name of the Job that owns everything; this pod's own by default."
)
@click.option("--namespace", "-n", help="This pod's own, or that of the kubeconfig, without it.")
@click.option(
    "--metrics", type=click.IntRange(1, 65535), help="Port of /metrics for Prometheus; none without it."
)
def main(
    only_iteration: int | None, job: str | None, namespace: str | None, metrics: int | None, **options: Any
) -> None:
    """Bring a run to its end on this cluster."""
    quiet_libraries()
    from scope_selfplay.base.terminal import shown_progress
    from scope_selfplay.cluster.probe import check_volume
    from scope_selfplay.driver.loop import control

    suffix = "-controller" if only_iteration is None else f"-i{only_iteration:02d}-controller"
    with shown_progress() as progress:
        check_volume(options["root"], progress.say)
        read = partial(read_inputs, **options, name=job and job.removesuffix(suffix), progress=progress)
        own = job or read().config.name + suffix
        where = {"root": options["root"], "job": own, "namespace": namespace, "metrics": metrics}
        code = control(read, **where, only_iteration=only_iteration, say=progress.say)
    sys.exit(exit_code_of(code))


def exit_code_of(verdict: ExitCode) -> ExitCode:
    """A verdict that stays has a code of its own: a controller that crashed (1) is started again, this one is not."""
    return ExitCode.FAILED if verdict is ExitCode.BUG else verdict


def read_inputs(
    config: Path,
    root: Path,
    prompts: Path,
    overrides: tuple[str, ...],
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> "Inputs":
    """What is mounted now; the first time, the run folder begins with it.

    Once it has begun, what was edited comes as a reason beside the run's own settings and prompts, so that a
    controller that starts after an edit can still wind the run down. `name` is what the run is called by its Job:
    the settings may not be readable, or name another run. Raises UserError where no run has begun.
    """
    from scope_selfplay.config.load import load_config
    from scope_selfplay.driver.loop import Inputs
    from scope_selfplay.prompts.folder import load_pack
    from scope_selfplay.run.begin import open_run

    # Each pack comes from a ConfigMap `<run>-prompts-<pack>`: every Job of the run gets the same.
    is_mounted = prompts.is_dir()
    packs = tuple(sorted(entry.name for entry in os.scandir(prompts) if entry.is_dir())) if is_mounted else ()
    try:
        settings = load_config(config, overrides)
        if name not in (None, settings.name) and RunFolder(root / name).config.is_file():
            raise RunMismatchError(f"name: found {settings.name!r}, this controller's run is {name!r}")
        name = settings.name
        run = open_run(settings, root, progress or Progress(), packs=prompts)
    except UserError as problem:
        if name is None or not (folder := RunFolder(root / name)).config.is_file():
            raise
        try:
            kept, pack = load_config(folder.config), load_pack(folder.prompts)
        except UserError:
            raise problem from None
        return Inputs(kept, pack.hash, packs, (str(problem),))
    return Inputs(run.config, run.pack.hash, packs)


if __name__ == "__main__":
    run_job(main, "run_controller")
