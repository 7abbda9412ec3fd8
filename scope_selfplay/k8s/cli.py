"""`scope k8s render|show|check|status|logs|fetch|doctor`; everything here can be done with kubectl alone."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scope_selfplay.errors import ExitCode

if TYPE_CHECKING:
    from scope_selfplay.config import RunConfig

_NAMESPACE = click.option("--namespace", "-n", help="Namespace; the context's own without it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def k8s() -> None:
    """Run on Kubernetes: write a run's folder, check it, follow it."""


@k8s.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--to", "top", type=click.Path(file_okay=False, path_type=Path), default=Path(), show_default=True
)
@click.option(
    "--component",
    "components",
    multiple=True,
    help="Folder below k8s/components; may be given again. The folder keeps those that it has when left out.",
)
@click.option("--force", is_flag=True, help="Replace files that were changed by hand.")
def render(config: Path, top: Path, components: tuple[str, ...], force: bool) -> None:
    """Write TO/k8s/runs/NAME from a run's CONFIG, and what it needs below TO where that is missing.

    A CONFIG that lies in a run's folder as setup/run.yaml is rendered there.
    """
    from scope_selfplay.config import load_config
    from scope_selfplay.errors import ConfigError
    from scope_selfplay.k8s.patches import RunFolderLayout
    from scope_selfplay.k8s.render import (
        components_of,
        copy_shared_parts,
        link_config,
        packs_needed,
        run_folder,
        shipped_kustomize,
        write_folder,
    )

    run = load_config(config)
    known = sorted(path.name for path in (shipped_kustomize() / "components").iterdir())
    for name in components:
        if name not in known:
            raise ConfigError(f"--component {name}: there are {', '.join(known)}")
    packs = packs_needed(run)
    in_place = config.parent.name == "setup" and config.name == "run.yaml"
    if not in_place:
        copy_shared_parts(top, packs)
    folder = config.parent.parent if in_place else top / "k8s" / "runs" / run.name
    layout = RunFolderLayout(packs=packs, components=components or components_of(folder))
    files = run_folder(run, config.read_text(encoding="utf-8"), layout)
    written = write_folder(folder, files, force=force)
    link_config(folder)
    for path in written:
        click.echo(path)
    if layout.components:
        click.echo(f"components: {', '.join(layout.components)}", err=True)
    _print_next_steps(run, folder)


def _print_next_steps(run: "RunConfig", folder: Path) -> None:
    from scope_selfplay.k8s.check_secrets import secrets_of
    from scope_selfplay.k8s.prepare import manual_steps, parts_at_once, prepare_parts

    for line in manual_steps(run):
        click.echo(f"note: {line}", err=True)
    click.echo(f"next: scope k8s check {folder}; kubectl apply -k {folder}", err=True)
    before = [secret.advice for secret in secrets_of(run).values() if secret.keys]
    before.append(f"kubectl apply -k {folder}/shared")
    parts = prepare_parts(run)
    if parts_at_once(parts):
        before.append(f"kubectl apply -k {folder}/prepare")
    if "warm-start" in parts:
        before.append(f"kubectl apply -k {folder}/prepare/warm-start (when prepare/models is done)")
    if parts_at_once(parts):
        before.append(f"kubectl wait --for=condition=complete --timeout=72h job -l scope/prepares={run.name}")
    click.echo(f"before that: {'; '.join(before)}", err=True)


@k8s.command()
@click.argument("folder", type=_FOLDER)
@click.option("--iteration", type=int, help="Only what this iteration adds; all iterations without it.")
def show(folder: Path, iteration: int | None) -> None:
    """Print every object of a run as YAML: those of FOLDER, and the Jobs and servers that its controller will create.

    Names and contents are those of the first attempts; owner and prompt hash are known when the run starts.
    """
    from scope_selfplay.k8s.check import applied_objects, config_of, packs_of
    from scope_selfplay.k8s.objects import planned_objects
    from scope_selfplay.k8s.patches import yaml_text

    applied = applied_objects(folder)
    config = config_of(applied, folder)
    iterations = range(config.iterations + 1) if iteration is None else (iteration,)
    planned = planned_objects(config, packs_of(applied, config.name), iterations)
    for body in [*([] if iteration is not None else applied), *planned]:
        click.echo("---\n" + yaml_text(body), nl=False)


@k8s.command()
@click.argument("folder", type=_FOLDER)
@click.option(
    "--cluster", "online", is_flag=True, help="Also ask the cluster: admission, storage, GPUs, quotas."
)
@_NAMESPACE
@_JSON
def check(folder: Path, online: bool, namespace: str | None, as_json: bool) -> None:
    """Report everything that is wrong with a run's FOLDER before it is applied."""
    from scope_selfplay.k8s.check import check_cluster, check_folder
    from scope_selfplay.k8s.kubectl import Kubectl

    checked = check_folder(folder)
    if online:
        checked = check_cluster(checked, folder, Kubectl(namespace))
    if as_json:
        problems = [vars(problem) for problem in checked.problems]
        click.echo(json.dumps({"problems": problems, "notes": checked.notes}, indent=1))
    else:
        for problem in checked.problems:
            click.echo(str(problem))
        for note in checked.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(f"{len(checked.objects)} objects, {len(checked.problems)} problem(s)", err=True)
    if checked.problems:
        sys.exit(ExitCode.USER)


@k8s.command()
@click.argument("run")
@_NAMESPACE
@_JSON
def status(run: str, namespace: str | None, as_json: bool) -> None:
    """Say where RUN is: its status, its Jobs and its servers."""
    from scope_selfplay.k8s.kubectl import Kubectl
    from scope_selfplay.k8s.status import read_status, show_status

    found = read_status(Kubectl(namespace), run)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        show_status(found)


@k8s.command()
@click.argument("run")
@click.option("--stage", help="Such as make-tasks; the newest Job of the run without it.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the Job ends.")
@_NAMESPACE
def logs(run: str, stage: str | None, follow: bool, namespace: str | None) -> None:
    """Show the log of RUN's newest Job."""
    from scope_selfplay.k8s.kubectl import Kubectl
    from scope_selfplay.k8s.status import newest_job

    cluster = Kubectl(namespace)
    more = ["--follow"] if follow else []
    sys.exit(cluster.follow("logs", f"job/{newest_job(cluster, run, stage)}", "--all-containers", *more))


@k8s.command()
@click.argument("run")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder in which the run's folder lies.",
)
@click.option(
    "--checkpoints", is_flag=True, help="The weights, too: 16 GB a checkpoint of 8 billion parameters."
)
@click.option("--force", is_flag=True, help="Replace files that did not come from the volume.")
@click.option("--folder", type=_FOLDER, help="The run's folder, where its controller's Job is deleted.")
@click.option(
    "--patience",
    type=float,
    default=300,
    show_default=True,
    help="Seconds to wait for a pod that reads the volume.",
)
@_NAMESPACE
@_JSON
def fetch(
    run: str,
    to: Path,
    checkpoints: bool,
    force: bool,
    folder: Path | None,
    patience: float,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Bring RUN's results from the volume: corpora, records, metrics, ratings, pages. May be repeated and goes on.

    A pod reads the volume for as long as this takes; the run may be at work, be finished, or be deleted.
    """
    from scope_selfplay.k8s.fetch import fetch as fetch_files
    from scope_selfplay.k8s.kubectl import Kubectl
    from scope_selfplay.k8s.reader import controller_of, reader
    from scope_selfplay.terminal import shown_progress

    cluster = Kubectl(namespace)
    controller = controller_of(cluster, run, folder)
    with shown_progress() as progress, reader(cluster, controller, run, patience) as pod:
        done = fetch_files(pod, run, to, progress, checkpoints=checkpoints, force=force)
    if as_json:
        click.echo(json.dumps(vars(done), indent=1))
    else:
        click.echo(done.folder)


@k8s.command()
@_NAMESPACE
@_JSON
def doctor(namespace: str | None, as_json: bool) -> None:
    """Say what this cluster can run, and what is missing."""
    from scope_selfplay.doctor import print_finding
    from scope_selfplay.k8s.doctor import examine
    from scope_selfplay.k8s.kubectl import Kubectl

    findings = examine(Kubectl(namespace))
    if as_json:
        click.echo(json.dumps([vars(finding) for finding in findings], indent=1))
        return
    for finding in findings:
        print_finding(finding)
