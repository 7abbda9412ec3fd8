"""`scope plan`: what a run will take, with the assumptions that it rests on."""

import json
from pathlib import Path

import click

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.config import RunConfig
from scope_selfplay.errors import CheckpointError, UserError
from scope_selfplay.planning.assumptions import SHARES, Assumptions
from scope_selfplay.planning.plan import make_plan
from scope_selfplay.planning.table import as_data, as_text
from scope_selfplay.preflight.checks import InputCheck, State
from scope_selfplay.preflight.needs import WHAT

PAPER = ("model.path=Qwen3-8B", "model.engine=vllm_colocated", "judge.gates=[entity, source]")
"""The paper's volume has two gates; the safety gate of our packs is not in the paper."""


@click.command()
@click.option("--config", type=click.Path(path_type=Path), default=None, help="YAML file of settings.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option("--paper", is_flag=True, help="The paper's settings (SCOPE, Table 9) for 8 billion parameters.")
@click.option("--parameters", type=float, default=None, help="Parameters of the model, such as 8.2e9.")
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
    from scope_selfplay.config import load_config
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path

    if paper and config is not None:
        raise UserError("--paper has settings of its own; leave out --config, or --paper")
    given = (*PAPER, *overrides) if paper else overrides
    settings = load_config(None if paper else config or DEFAULT_CONFIG, given)
    gates = settings.judge.gates
    if gates is None:
        gates = load_pack(pack_path(settings.domain)).domain.gates
    made = make_plan(settings, gates=len(gates), assumptions=_assumptions(assumed), parameters=parameters)
    found = None if paper else _documents(settings)
    if as_json:
        counted = {} if found is None else {WHAT: {"found": found.found, "advice": found.advice}}
        click.echo(json.dumps(as_data(made) | counted, indent=1))
    else:
        click.echo(as_text(made) + ("" if found is None else f"\n{found}"))


def _documents(settings: RunConfig) -> InputCheck | None:
    """The documents that the run has, held against those that its stages take; None where it reads none."""
    from scope_selfplay.preflight.examine import embedded_pool, pool_of
    from scope_selfplay.preflight.needs import check_documents
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.run_directory import run_documents

    path = settings.corpus.path
    if path == "none":
        return None
    if path == "embedded":
        return check_documents(settings, embedded_pool(settings.corpus))
    if not Path(path).exists():
        return InputCheck(WHAT, State.OK, f"{path} is not on this machine and not counted")
    try:
        documents = run_documents(settings, load_pack(pack_path(settings.domain)))
    except CheckpointError as error:
        # How long a document may be is counted by the policy's tokenizer, which may be on a cluster only.
        return InputCheck(
            WHAT, State.OK, f"those in {path} are not counted without the policy's tokenizer ({error})"
        )
    return check_documents(settings, pool_of(documents))


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
    for name in SHARES:
        if getattr(found, name) > 1:
            raise click.BadParameter(
                f"{name}: found {getattr(found, name)}, a share is at most 1", param_hint="--assume"
            )
    return found
