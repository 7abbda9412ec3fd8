"""`scope preflight`: what a run would do with its inputs, before it begins. Heavy imports wait for the command."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope_selfplay.config import RunConfig
    from scope_selfplay.preflight.checks import InputCheck

_MARKS = {"ok": ("ok", "green"), "warning": ("look", "yellow"), "stop": ("STOP", "bold red")}


def show_checks(checks: "Sequence[InputCheck]") -> None:
    """The table on stdout; in a pipe a line with tabs for each check."""
    if not sys.stdout.isatty():
        for check in checks:
            click.echo(f"{_MARKS[check.state][0]}\t{check.what}\t{check.found}\t{check.advice}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("", "what", "found", "what to change"):
        table.add_column(column, overflow="fold")
    for check in checks:
        mark, style = _MARKS[check.state]
        table.add_row(f"[{style}]{mark}[/{style}]", check.what, check.found, check.advice)
    Console(highlight=False).print(table, markup=False)


def preflight_of(settings: "RunConfig", root: Path) -> "list[InputCheck]":
    """Every check of a run that is to begin. Raises UserError as the run would, for what cannot be read at all."""
    from scope_selfplay.inference.checkpoints import check_policy, policy_path
    from scope_selfplay.preflight.examine import examine
    from scope_selfplay.run_directory import check_inputs, run_documents

    pack = check_inputs(settings, root)
    check_policy(policy_path(settings.model.path), settings)
    return examine(settings, pack, run_documents(settings, pack), root)
