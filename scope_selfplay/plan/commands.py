"""`scope plan`: what a run will take, with the assumptions that it rests on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import CheckpointError, Finding, UserError
from scope_selfplay.base.terminal import PATH, Table
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.plan.load import ResourcePlan, make_plan
from scope_selfplay.plan.memory import Parts, PodMemory
from scope_selfplay.plan.preflight import WHAT, check_documents, pool_of, unread_documents
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.run.begin import run_documents, short_share

_COUNTS = ("prompts", "challenger_rollouts", "solver_rollouts", "judge_calls", "tokens")
_HOURS = ("generate_hours", "judge_hours", "train_hours")
_DISK = ("disk_gib", "kept_gib")
_COUNTED_BY = ("acceptance", "gates_passed", "criteria", "flat_share")
"""The assumptions behind counts, without tokens."""
_LEAST_GIB = 0.5
PAPER = ("model.path=Qwen3-8B", "model.engine=vllm_colocated", "judge.gates=[entity, source]")
"""The paper's volume has two gates; the safety gate of our packs is not in the paper."""


@click.command()
@click.option("--config", type=PATH, help="YAML file of settings.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option("--paper", is_flag=True, help="The paper's settings (SCOPE, Table 9) for 8 billion parameters.")
@click.option("--parameters", type=float, help="Parameters of the model, such as 8.2e9.")
@click.option("--assume", "assumed", multiple=True, metavar="NAME=NUMBER", help="Change one assumption.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    config: Path | None,
    overrides: tuple[str, ...],
    *,
    paper: bool,
    parameters: float | None,
    assumed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count prompts, rollouts, judge calls and tokens of a run, and estimate GPU hours, memory and disk.

    Without --config: the run that `scope run` would do. Documents that are here are read and counted.
    """
    if paper and config is not None:
        raise UserError("--paper has settings of its own; leave out --config, or --paper")
    given = (*PAPER, *overrides) if paper else overrides
    settings = load_config(None if paper else config or DEFAULT_CONFIG, given)
    pack = load_pack(pack_path(settings.domain))
    gates = pack.domain.gates if settings.judge.gates is None else settings.judge.gates
    made = make_plan(
        settings,
        gates=len(gates),
        assumptions=_assumptions(assumed),
        parameters=parameters,
        short=short_share(settings, pack),
    )
    found = None if paper else _documents(settings, pack)
    if as_json:
        counted = {} if found is None else {WHAT: {"found": found.what, "advice": found.advice}}
        click.echo(json.dumps(as_data(made) | counted, indent=1))
    else:
        click.echo(as_text(made) + ("" if found is None else f"\n{found}"))


def _documents(settings: RunConfig, pack: Pack) -> Finding | None:
    """The documents that the run has, held against those that its stages take; None where it reads none."""
    path = settings.corpus.path
    if path in ("none", "embedded") or not Path(path).exists():
        return unread_documents(settings, "is not on this machine and not counted")
    try:
        documents = run_documents(settings, pack)
    except CheckpointError as error:
        # How long a document may be is counted by the policy's tokenizer, which may be on a cluster only.
        return unread_documents(settings, f"is not counted without the policy's tokenizer ({error})")
    return check_documents(settings, pool_of(documents, settings))


def _assumptions(given: tuple[str, ...]) -> Assumptions:
    try:
        return Assumptions.model_validate(dict(text.partition("=")[::2] for text in given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, known = first["loc"][0], ", ".join(Assumptions.model_fields)
        told = (
            f"names are {known}"
            if first["type"] == "extra_forbidden"
            else f"{first['msg']}, found {first['input']}"
        )
        raise click.BadParameter(f"{name}: {told}", param_hint="--assume") from None


def as_data(plan: ResourcePlan) -> dict[str, object]:
    names = ("gib", "fits", "host_gib", "host_fits")
    pods = [_data(pod) | {name: getattr(pod, name) for name in names} for pod in plan.pods]
    shown = ("model", "gpus", "iterations", "once", "stages", "pods", "retrieval")
    return {
        **{name: _data(getattr(plan, name)) for name in shown},
        "iteration": {name: plan.total(name) for name in (*_COUNTS, *_HOURS)},
        "gpu_hours": plan.gpu_hours,
        "volume_gib": plan.volume_gib,
        "pods": pods,
        "assumptions": plan.assumptions.model_dump(),
    }


def _data(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _data(each) for name, each in value._asdict().items()}
    return [_data(each) for each in value] if isinstance(value, tuple) else value


def as_text(plan: ResourcePlan) -> str:
    """A small model has no GPUs to speak of: its plan is what is made and asked."""
    assumed = plan.assumptions.model_dump()
    if plan.is_small:
        size, beside = f"{plan.model.parameters / 1e6:.1f} million parameters", ""
        assumed = {name: assumed[name] for name in _COUNTED_BY}
    else:
        size, beside = f"{plan.model.parameters / 1e9:.2f} billion parameters", f", {plan.gpus} GPUs"
    lines = [
        f"{size} (from {plan.model.found}), one of {plan.iterations} iterations{beside}",
        "",
        *_stages(plan).text(),
        "",
        *(() if plan.is_small else _of_gpus(plan)),
        "assumed: " + ", ".join(f"{name}={value:g}" for name, value in assumed.items()),
    ]
    return "\n".join(lines)


def _of_gpus(plan: ResourcePlan) -> Iterator[str]:
    yield (
        f"GPU hours of the run, busy: {plan.gpu_hours:,.0f} (an estimate, nothing of it was measured); "
        f"disk: {plan.volume_gib:,.0f} GiB at most"
    )
    if (found := plan.retrieval) is not None:
        short = " (too little)" if found.is_short else ""
        yield (
            f"retriever: {found.passages:,} passages take {found.memory_gib:,.0f} of the {found.requested_gib:,.0f} "
            f"GiB that it has{short}"
        )
    yield ""
    yield from _pods(plan).text()
    yield ""
    for pod in plan.pods:
        advice = f"; {pod.advice}" if pod.advice else ""
        yield f"{pod.pod} on {_gpus(pod)} GPU(s): {_shown(pod.parts)}; host: {_shown(pod.host_parts)}{advice}"
    yield ""


def _stages(plan: ResourcePlan) -> Table:
    columns = _COUNTS[:-1] if plan.is_small else (*_COUNTS, *_HOURS, *_DISK)
    named = [(f"{stage.stage} (once)", stage) for stage in plan.once]
    for stage in plan.stages:
        seldom = f" ({stage.times} of {plan.iterations})" if stage.times < plan.iterations else ""
        named.append((f"{stage.stage}{seldom}", stage))
    # Stages follow one another, and one at a time is at work.
    totals = {name: plan.total(name) for name in columns}
    totals["disk_gib"] = max(stage.disk_gib for stage in plan.stages)
    numbers = [(name, {column: getattr(stage, column) for column in columns}) for name, stage in named]
    rows = [
        (name, *(f"{found[column]:,.{1 if column in _HOURS else 0}f}" for column in columns))
        for name, found in (*numbers, ("iteration", totals))
    ]
    head = ("stage", *(column.replace("_", " ").replace("gib", "GiB") for column in columns))
    return Table("", head, tuple(rows))


def _pods(plan: ResourcePlan) -> Table:
    head = ("pod", "GPUs", "GiB a GPU", "most while", "", "GiB of host", "of", "")
    rows = (
        (
            pod.pod,
            _gpus(pod),
            f"{pod.gib:.0f}",
            pod.peak,
            "fits" if pod.fits else "DOES NOT FIT",
            f"{pod.host_gib:.0f}",
            f"{pod.requested:.0f}",
            "fits" if pod.host_fits else "DOES NOT FIT",
        )
        for pod in plan.pods
    )
    return Table("", head, tuple(rows))


def _gpus(pod: PodMemory) -> str:
    return f"{pod.nodes} x {pod.gpus}" if pod.nodes > 1 else str(pod.gpus)


def _shown(parts: Parts) -> str:
    return ", ".join(f"{name} {gib:.0f}" for name, gib in parts.items() if gib >= _LEAST_GIB)
