"""`scope plan`: what a run will take, with the assumptions that it rests on."""

import json
from pathlib import Path

import click

from scope_selfplay.planning.memory import Assumptions
from scope_selfplay.planning.plan import ResourcePlan, make_plan

_COLUMNS = ("prompts", "challenger_rollouts", "solver_rollouts", "judge_calls", "tokens")
_HOURS = ("generate_hours", "judge_hours", "train_hours")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), default=None, help="YAML file of settings.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option("--gpus", type=int, default=6, show_default=True, help="GPUs of the layout: 1, 6 or 8.")
@click.option("--parameters", type=float, default=None, help="Parameters of the model, such as 8.2e9.")
@click.option("--assume", "assumed", multiple=True, metavar="NAME=NUMBER", help="Change one assumption.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    config: Path | None,
    overrides: tuple[str, ...],
    gpus: int,
    parameters: float | None,
    assumed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count prompts, rollouts, judge calls and tokens of a run, and estimate memory and GPU hours.

    Without --config: the paper's settings (SCOPE, Table 9) for a model of 8 billion parameters.
    """
    from scope_selfplay.config import load_config
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path

    settings = load_config(config, overrides)
    if config is None and not any(override.startswith("model.path=") for override in overrides):
        # The paper's volume has two gates; the safety gate of our packs is not in the paper.
        papers = ["model.path=Qwen3-8B", "model.engine=vllm_colocated", "judge.gates=[entity, source]"]
        settings = load_config(None, [*papers, *overrides])
    gates = settings.judge.gates
    if gates is None:
        gates = load_pack(pack_path(settings.domain)).domain.gates
    made = make_plan(
        settings, gpus=gpus, gates=len(gates), assumptions=_assumptions(assumed), parameters=parameters
    )
    click.echo(json.dumps(as_data(made), indent=1) if as_json else as_text(made))


def as_data(plan: ResourcePlan) -> dict[str, object]:
    return {
        "model": plan.model._asdict(),
        "gpus": plan.gpus,
        "iterations": plan.iterations,
        "stages": [stage._asdict() for stage in plan.stages],
        "iteration": {name: plan.total(name) for name in (*_COLUMNS, *_HOURS)},
        "gpu_hours": plan.gpu_hours,
        "pods": [pod._asdict() for pod in plan.pods],
        "assumptions": plan.assumptions._asdict(),
    }


def as_text(plan: ResourcePlan) -> str:
    lines = [
        f"{plan.model.parameters / 1e9:.2f} billion parameters (from {plan.model.found}), one of "
        f"{plan.iterations} iterations, {plan.gpus} GPUs",
        "",
    ]
    rows = [("stage", *(name.replace("_", " ") for name in (*_COLUMNS, *_HOURS)))]
    for stage in plan.stages:
        counts = [f"{getattr(stage, name):,}" for name in _COLUMNS]
        rows.append((stage.stage.value, *counts, *(f"{getattr(stage, name):,.1f}" for name in _HOURS)))
    totals = [f"{plan.total(name):,.0f}" for name in _COLUMNS]
    rows.append(("iteration", *totals, *(f"{plan.total(name):,.1f}" for name in _HOURS)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [
        "",
        f"GPU hours of the run, busy: {plan.gpu_hours:,.0f} (an estimate, nothing of it was measured)",
        "",
    ]
    for pod in plan.pods:
        parts = ", ".join(f"{name} {gib:.0f}" for name, gib in pod.parts.items() if gib >= 0.5)
        mark = "fits" if pod.fits else "DOES NOT FIT"
        lines.append(
            f"{pod.pod} on {pod.gpus} GPU(s): {pod.gib:.0f} GiB each ({parts}): {mark}"
            + (f"; {pod.advice}" if pod.advice else "")
        )
    named = [f"{name}={value:g}" for name, value in plan.assumptions._asdict().items()]
    return "\n".join([*lines, "", "assumed: " + ", ".join(named)])


def _assumptions(given: tuple[str, ...]) -> Assumptions:
    found = Assumptions()
    for text in given:
        name, _, value = text.partition("=")
        if name not in Assumptions._fields:
            raise click.BadParameter(
                f"{text}: names are {', '.join(Assumptions._fields)}", param_hint="--assume"
            )
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if number <= 0:
            raise click.BadParameter(f"{text}: expected a number above 0", param_hint="--assume")
        whole = isinstance(getattr(found, name), int)
        found = Assumptions(**found._asdict() | {name: int(number) if whole else number})
    if found.acceptance > 1:
        raise click.BadParameter(
            f"acceptance: found {found.acceptance}, a share is at most 1", param_hint="--assume"
        )
    return found
