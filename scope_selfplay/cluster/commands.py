"""`scope k8s render|show|check|fetch|doctor`; everything here can be done with kubectl alone."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scope_selfplay.base.errors import ConfigError, ExitCode, State
from scope_selfplay.base.terminal import FOLDER, show_findings, shown_progress
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.cluster.objects import planned_objects
from scope_selfplay.cluster.prepare import manual_steps, prepare_jobs, secrets_of

if TYPE_CHECKING:
    from scope_selfplay.config.run import RunConfig

_NAMESPACE = click.option("--namespace", "-n", help="Namespace; the context's own without it.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def k8s() -> None:
    """Run on Kubernetes: write a run's folder, check it, fetch its results."""


@k8s.command()
@click.argument("config", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--preset", help="One of the papers' runs that ship, instead of CONFIG.")
@click.option("--to", "top", type=FOLDER, help="This folder without it, or CONFIG's.")
@click.option(
    "--component",
    "components",
    multiple=True,
    help="A component of the base; may be given again. The folder keeps those that it has when left out.",
)
@click.option(
    "--vendor", is_flag=True, help="Copy base and prompts below TO: the folder needs no package then."
)
@click.option("--update", is_flag=True, help="Show what changes, and keep files that were edited by hand.")
@click.option("--force", is_flag=True, help="Replace files that were edited by hand.")
def render(
    config: Path | None,
    preset: str | None,
    top: Path | None,
    components: tuple[str, ...],
    vendor: bool,
    update: bool,
    force: bool,
) -> None:
    """Write TO/k8s/runs/NAME from a run's CONFIG, and from what TO/k8s/cluster.yaml says of the cluster.

    Without --to a CONFIG that lies in a run's folder as run.yaml is rendered there.
    """
    from scope_selfplay.cluster.folder import render_folder, shipped_kustomize
    from scope_selfplay.config.load import CLUSTER_FILE, load_config

    base = shipped_kustomize()
    presets = {file.stem: file for file in sorted((base / "presets").glob("*.yaml"))}
    if (config is None) == (preset is None) or (preset and preset not in presets):
        raise ConfigError(f"render: expected CONFIG or --preset, which is one of {', '.join(presets)}")
    config = config or presets[str(preset)]
    config = config.parent / config.readlink() if config.is_symlink() else config
    known = sorted(path.name for path in (base / "components").iterdir())
    for name in components:
        if name not in known:
            raise ConfigError(f"--component {name}: there are {', '.join(known)}")
    if top is None and config.parent.name == "setup" and config.name == "run.yaml":
        top = Path(os.path.relpath(config.resolve().parents[4]))
        place = config.resolve().parents[1].relative_to(top.resolve())
    else:
        top, place = top or Path(), Path("k8s", "runs", load_config(config).name)
    shared = top / "k8s" / CLUSTER_FILE
    run = load_config(config, cluster=shared if shared.is_file() else None)
    text, how = config.read_text(encoding="utf-8"), {"force": force, "update": update}
    layout, wrote = render_folder(top, place, run, text, components, vendor=vendor, **how)
    for each in wrote:
        for line in [each.difference.rstrip()] if update and each.difference else each.changed:
            click.echo(line)
        for path in each.kept:
            click.echo(f"kept: {path}, which was edited by hand", err=True)
    if layout.components:
        click.echo(f"components: {', '.join(layout.components)}", err=True)
    _print_next_steps(run, top / place)


def _print_next_steps(run: "RunConfig", folder: Path) -> None:
    for line in manual_steps(run):
        click.echo(f"note: {line}", err=True)
    click.echo(f"next: scope k8s check {folder}; kubectl apply -k {folder}", err=True)
    before = [secret.advice for secret in secrets_of(run).values() if secret.keys]
    before.append(f"kubectl apply -k {folder}/shared")
    jobs = prepare_jobs(run)
    before += [f"kubectl apply -k {folder}/{place}" for place in jobs]
    if "prepare/warm-start" in jobs:
        before[-1] += " (when the models are there)"
    if jobs:
        before.append(f"kubectl wait --for=condition=complete --timeout=72h job -l scope/prepares={run.name}")
    click.echo(f"before that: {'; '.join(before)}", err=True)


@k8s.command()
@click.argument("folder", type=_FOLDER)
@click.option("--iteration", type=int, help="Only what this iteration adds; all iterations without it.")
def show(folder: Path, iteration: int | None) -> None:
    """Print every object of a run as YAML: those of FOLDER, and the Jobs and servers that its controller will create.

    Names and contents are those of the first attempts; owner and prompt hash are known when the run starts.
    """
    from scope_selfplay.cluster.check import applied_objects, config_of, packs_of
    from scope_selfplay.cluster.folder import yaml_text

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
    from scope_selfplay.cluster.check import check_cluster, check_folder

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
@click.option("--to", type=FOLDER, default=Path("runs"), help="Folder in which the run's folder lies.")
@click.option(
    "--checkpoints", is_flag=True, help="The weights, too: 16 GB a checkpoint of 8 billion parameters."
)
@click.option("--force", is_flag=True, help="Replace files that did not come from the volume.")
@click.option("--folder", type=_FOLDER, help="The run's folder, where its controller's Job is deleted.")
@click.option("--patience", type=float, default=300, help="Seconds to wait for a pod that reads the volume.")
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

    A pod reads the volume for as long as this takes; the run may be at work, be finished, or be deleted. Those of a run
    with a store come from there.
    """
    from scope_selfplay.cluster.fetch import fetch as fetch_files
    from scope_selfplay.cluster.fetch import reader

    with shown_progress() as progress, reader(Kubectl(namespace), run, folder, patience) as pod:
        done = fetch_files(pod, run, to, progress, checkpoints=checkpoints, force=force)
    click.echo(json.dumps(vars(done), indent=1) if as_json else done.folder)


@k8s.command()
@click.option(
    "--write",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what is seen of the cluster to this file, such as k8s/cluster.yaml.",
)
@_NAMESPACE
@_JSON
def doctor(file: Path | None, namespace: str | None, as_json: bool) -> None:
    """Say what this cluster can run, and what is missing."""
    from scope_selfplay.cluster.doctor import cluster_values, examine

    cluster = Kubectl(namespace)
    findings = examine(cluster)
    show_findings(findings, as_json=as_json)
    stops = [finding for finding in findings if finding.state is State.STOP]
    if file is not None and not any(each.is_outside for each in stops):
        if file.exists():
            raise ConfigError(f"{file}: exists; write to another file, and compare")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(cluster_values(cluster), encoding="utf-8")
        click.echo(f"{file}: written; what it asks for in its first lines is yours to fill in", err=True)
    if stops:
        sys.exit(ExitCode.OUTSIDE if any(each.is_outside for each in stops) else ExitCode.USER)
