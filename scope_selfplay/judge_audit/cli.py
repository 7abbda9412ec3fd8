"""`scope judge audit`: asks a run's judge again, and says how far it can be trusted.

What reads runs and asks judges is imported when the command runs.
"""

import json

import click

from scope_selfplay.judge.cli import judge
from scope_selfplay.terminal import quiet_libraries, shown_progress
from scope_selfplay.untrusted_text import one_line

SAMPLE = 600


@judge.command("audit")
@click.argument("run")
@click.option(
    "--sample", default=SAMPLE, show_default=True, type=click.IntRange(min=1), help="Most calls to make."
)
@click.option("--pack", help="Prompt pack that asks in other words: a folder or a shipped name.")
@click.option("--base-url", help="Endpoint of another judge to ask as well.")
@click.option("--model", help="Its model, if it serves several.")
@click.option("--api-key-env", help="Environment variable that holds its key.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, such as the judge's address.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit_command(
    run: str,
    sample: int,
    pack: str | None,
    base_url: str | None,
    model: str | None,
    api_key_env: str | None,
    overrides: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Ask again what RUN has paid its judge for: with other draws, in the other order, with longer answers, in other
    words, of another judge. Stopped and started again, it goes on.

    \b
    scope judge audit runs/demo
    scope judge audit runs/demo --sample 2000 --base-url http://127.0.0.1:8002/v1
    """
    from scope_selfplay.config import load_config
    from scope_selfplay.health.judging import audit_values
    from scope_selfplay.health.signals import signal_of
    from scope_selfplay.inspection.judge_checks import check_lines, judge_checks
    from scope_selfplay.inspection.people import people
    from scope_selfplay.judge_audit.auditing import Audit, audit_judge
    from scope_selfplay.store.reader import RunReader, find_run

    quiet_libraries()
    path = find_run(run)
    other = None
    if base_url:
        given = {"base_url": base_url, "model": model, "api_key_env": api_key_env}
        settings = [f"judge.endpoint.{name}={value}" for name, value in given.items() if value]
        other = load_config(None, ["judge.kind=model", *settings]).judge
    with shown_progress() as progress:
        report = audit_judge(path, overrides, Audit(sample, pack, other), progress)
    with RunReader(path) as reader:
        checks = judge_checks(reader.folder, people(reader))
    warnings = [
        found for name, value in audit_values(report).items() if (found := signal_of(name, value).warning)
    ]
    if as_json:
        shown = {"checks": [check.model_dump(mode="json") for check in checks], "warnings": warnings}
        click.echo(json.dumps({**report.model_dump(mode="json"), **shown}, ensure_ascii=False))
        return
    click.echo(f"{one_line(report.judge)}: {report.calls} calls in {path / 'audit'}")
    for line in check_lines(checks):
        click.echo(line)
    click.echo("\n== Warnings" if warnings else "\nnothing to warn of")
    for warning in warnings:
        click.echo(f"  {one_line(warning)}")


__all__ = ["judge"]
