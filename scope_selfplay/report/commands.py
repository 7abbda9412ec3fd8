"""`scope tasks ...` and `scope report`: what a run has made, at the terminal and as one HTML file."""

import sys
from pathlib import Path
from typing import Any

import click

from scope_selfplay.base.errors import UserError
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import CandidateStatus, Reason
from scope_selfplay.store.query import Flaw, Sort, Suspect

STATUSES, REASONS, GATES, SORTS, FLAWS, SUSPECTS = (
    [member.value for member in names] for names in (CandidateStatus, Reason, Gate, Sort, Flaw, Suspect)
)


@click.group()
def tasks() -> None:
    """List, show, count and compare tasks; RUN is a run folder, or a name under runs/."""


@tasks.command("ls")
@click.argument("run")
@click.option("--iteration", type=int, default=None, help="0 are the held-out tasks.")
@click.option(
    "--stage", type=click.Choice(["tasks", "challenger", "all"]), default="tasks", show_default=True
)
@click.option("--status", type=click.Choice(STATUSES), default=None)
@click.option("--reason", type=click.Choice(REASONS), default=None)
@click.option(
    "--gate", type=click.Choice(GATES), default=None, help="Refused by this gate, whatever it ended as."
)
@click.option("--type", "kind", default=None, help="Task type.")
@click.option("--searches", type=click.IntRange(0), default=None, help="Searches made while it was written.")
@click.option(
    "--flaw",
    type=click.Choice(FLAWS),
    default=None,
    help="A demand without criterion, a criterion without evidence.",
)
@click.option("--tool", default=None, help="A tool that a rollout on the task called, such as search.")
@click.option(
    "--suspect", type=click.Choice(SUSPECTS), default=None, help="What of it is suspect of injection."
)
@click.option("--min", "low", type=float, default=None, help="Least mean score.")
@click.option("--max", "high", type=float, default=None, help="Greatest mean score.")
@click.option("--text", default="", help="Part of the task, its document's id or its own.")
@click.option("--sort", type=click.Choice(SORTS), default="order", show_default=True)
@click.option("--desc", "descending", is_flag=True, help="The other way round.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def ls(run: str, as_json: bool, kind: str | None, stage: str, **filters: Any) -> None:
    """List candidates, accepted and rejected; one a line with tabs between cells where it is piped."""
    from scope_selfplay.report.record import plain_list, show_list
    from scope_selfplay.store.query import TaskQuery

    query = TaskQuery.model_validate({**filters, "type": kind, "stage": None if stage == "all" else stage})
    with _reader(run) as reader:
        page = reader.tasks(query)
    if as_json:
        click.echo(page.model_dump_json(indent=1))
    elif sys.stdout.isatty():
        from rich.console import Console

        show_list(page, Console())
    else:
        click.echo("\n".join(plain_list(page)))
        if page.offset + len(page.lines) < page.total:
            click.echo(f"{page.total} match; --limit and --offset show the others", err=True)


@tasks.command("show")
@click.argument("run")
@click.argument("task")
@click.option("--iteration", type=int, default=None)
@click.option("--passages", is_flag=True, help="Print what every search found in full.")
@click.option("--json", "as_json", is_flag=True)
def show(run: str, task: str, iteration: int | None, passages: bool, as_json: bool) -> None:
    """Show one candidate: document, gates, rubric, every rollout with its verdicts, comparisons, provenance.

    TASK is the id of a candidate or of a task, or its beginning.
    """
    from scope_selfplay.report.record import describe_task, whole_task

    with _reader(run) as reader:
        record = whole_task(reader, task, iteration=iteration)
    if as_json:
        click.echo(record.model_dump_json(indent=1))
        return
    text = "\n".join(describe_task(record, passages=passages))
    (click.echo_via_pager if sys.stdout.isatty() else click.echo)(text)


@tasks.command("stats")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True)
def stats(run: str, as_json: bool) -> None:
    """Count: the funnel, scores, task types, held-out results, and the health of the self-play with warnings."""
    from scope_selfplay.report.health import examine
    from scope_selfplay.report.overview import run_sections
    from scope_selfplay.report.sections import json_of, text_of

    with _reader(run) as reader:
        sections = run_sections(reader, examine(reader))
    click.echo(json_of(sections) if as_json else "\n".join(text_of(sections)))


@tasks.command("diff")
@click.argument("run")
@click.argument("before")
@click.argument("after")
@click.option(
    "--limit", type=click.IntRange(0), default=20, show_default=True, help="Changed tasks to print."
)
@click.option("--json", "as_json", is_flag=True)
def diff(run: str, before: str, after: str, limit: int, as_json: bool) -> None:
    """Compare two checkpoints (S_0 S_1) on the same held-out tasks, or the tasks of two iterations (1 2)."""
    import json

    from scope_selfplay.report.record import (
        diff_checkpoints,
        diff_lines,
        signals_of_two,
        tab_lines,
        task_changes,
    )

    with _reader(run) as reader:
        if before.isdecimal() and after.isdecimal():
            rows = signals_of_two(reader, int(before), int(after))
            names = ("title", "before", "after", "unit")
            data = [json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1)]
            click.echo("\n".join(data if as_json else tab_lines(("signal", before, after, "unit"), rows)))
            return
        found = diff_checkpoints(before, after, task_changes(reader, reader.scores(), before, after))
    if as_json:
        click.echo(found.model_dump_json(indent=1))
        return
    click.echo("\n".join(diff_lines(found, limit)))


@click.command()
@click.argument("run")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"))
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
def report(run: str, output: Path, force: bool) -> None:
    """Write a run's report: one HTML file that needs nothing else, for a mail or a ticket.

    RUN may be a folder of `scope eval`, too.
    """
    from scope_selfplay.evaluation.folder import EvaluationReader, is_evaluation
    from scope_selfplay.report.rendering import render_evaluation, render_report
    from scope_selfplay.store.files import write_atomic

    if output.exists() and not force:
        raise UserError(f"-o {output}: is there already; give --force to replace it, or another file")
    if not output.parent.is_dir():
        raise UserError(f"-o {output}: there is no folder {output.parent}; make it, or give another one")
    if is_evaluation(Path(run)):
        text = render_evaluation(EvaluationReader(Path(run)))
    else:
        with _reader(run) as reader:
            text = render_report(reader)
    write_atomic(output, text)
    click.echo(output)


def _reader(run: str) -> Any:
    from scope_selfplay.store.reader import RunReader, find_run

    return RunReader(find_run(run))


@click.command()
@click.argument("evaluation", type=click.Path(path_type=Path))
@click.option("--item", help="One item with all its answers and verdicts.")
@click.option("--passages", is_flag=True, help="With --item: print what every search found in full.")
@click.option("--between", nargs=2, metavar="A B", help="The items on which two checkpoints differ most.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Items to print.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def leaderboard(
    evaluation: Path,
    *,
    item: str | None,
    passages: bool,
    between: tuple[str, str] | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show an EVALUATION, a folder of `scope eval`: leaderboard, differences, costs; or single items."""
    from pydantic_core import to_json

    from scope_selfplay.evaluation.folder import EvaluationReader, tables_of
    from scope_selfplay.report.record import describe_item, diff_checkpoints, diff_lines

    reader = EvaluationReader(evaluation)
    if item is not None:
        record = reader.item(item)
        lines = [to_json(record, indent=1).decode()] if as_json else describe_item(record, passages=passages)
    elif between is not None:
        diff = diff_checkpoints(*between, reader.changes(*between))
        lines = [diff.model_dump_json(indent=1)] if as_json else diff_lines(diff, limit)
    else:
        result = reader.result()
        lines = (
            [result.model_dump_json(indent=1)]
            if as_json
            else [line for table in tables_of(result) for line in table.text()]
        )
    click.echo("\n".join(lines))


@click.command()
@click.argument("run")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."
)
@click.option(
    "--base-path", default="/", show_default=True, help="Path in front of every page, behind an ingress."
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that is answered besides this machine's own, * for any; may be repeated.",
)
def view(run: str, host: str, port: int, base_path: str, hosts: tuple[str, ...]) -> None:
    """Show a run in the browser: its numbers, tasks, rollouts, verdicts, comparisons and prompts.

    RUN is a run folder, or a name under runs/; it may still be running, and is only read. Or a folder of `scope eval`.
    """
    from scope_selfplay.base.errors import ConfigError
    from scope_selfplay.base.terminal import end_on_sigterm
    from scope_selfplay.store.reader import find_run

    try:
        from scope_selfplay.report.app import Site, serve_run
    except ImportError as error:
        raise ConfigError(f"scope view needs {error.name}: pip install 'scope-selfplay[view]'") from None
    from scope_selfplay.net.guard import LOOPBACK

    base = "/" + base_path.strip("/")
    if any(part in base for part in "?#% \\\"'<>") or "//" in base:
        raise ConfigError(f"--base-path {base_path!r}: expected a path such as /runs/demo")
    folder = find_run(run)
    if host not in LOOPBACK:
        click.echo(f"warning: everyone who reaches {host}:{port} can read {folder}", err=True)
    end_on_sigterm()
    own = () if host in ("0.0.0.0", "::") else (host,)
    site = Site(base=base.rstrip("/"), hosts=(*sorted(LOOPBACK), *hosts, *own))
    serve_run(folder, site, host, port, lambda url: click.echo(f"showing {folder} at {url}", err=True))
