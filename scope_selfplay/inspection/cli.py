"""`scope tasks ...` and `scope report`: what a run has made, at the terminal and as one HTML file."""

import sys
from pathlib import Path
from typing import Any

import click

from scope_selfplay.errors import UserError
from scope_selfplay.gates import Gate
from scope_selfplay.schemas import CandidateStatus, Reason
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
    from scope_selfplay.inspection.text import plain_list, show_list
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
    import json

    from scope_selfplay.inspection.people import answers_by_people, verdicts_by_people
    from scope_selfplay.inspection.text import describe_task, verdicts_of_people
    from scope_selfplay.store.query import Judgements

    with _reader(run) as reader:
        record = reader.task(task, iteration=iteration)
        task_written = record.candidate.task
        attempts = reader.attempts_on(task_written.id) if task_written else []
        matches = reader.comparisons_on(task_written.id) if task_written else []
        judgements = reader.judgements_on(task_written.id) if task_written else Judgements()
        by_people = answers_by_people(reader, task_written.id) if task_written else []
        said = verdicts_by_people(reader, task_written.id) if task_written else []
    others = [attempt for attempt in attempts if attempt.rollout.id not in record.candidate.rollout_ids]
    others += by_people
    if as_json:
        found = record.model_dump(mode="json") | {
            "other_attempts": [attempt.model_dump(mode="json") for attempt in others],
            "comparisons": [match.model_dump(mode="json") for match in matches],
            **judgements.model_dump(mode="json"),
            "by_people": [verdict.model_dump(mode="json") for verdict in said],
        }
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    lines = [
        *describe_task(record, others, matches, judgements, passages=passages),
        *verdicts_of_people(said),
    ]
    text = "\n".join(lines)
    (click.echo_via_pager if sys.stdout.isatty() else click.echo)(text)


@tasks.command("stats")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True)
def stats(run: str, as_json: bool) -> None:
    """Count: the funnel, scores, task types, held-out results, and the health of the self-play with warnings."""
    from scope_selfplay.inspection.overview import overview
    from scope_selfplay.inspection.text import describe_overview

    with _reader(run) as reader:
        page = overview(reader)
    click.echo(page.model_dump_json(indent=1) if as_json else "\n".join(describe_overview(page)))


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

    from scope_selfplay.inspection.comparing import diff_checkpoints, diff_iterations, task_changes
    from scope_selfplay.inspection.text import tab_lines

    with _reader(run) as reader:
        if before.isdecimal() and after.isdecimal():
            signals = diff_iterations(reader, int(before), int(after))
            if as_json:
                click.echo(json.dumps([signal.model_dump() for signal in signals], indent=1))
                return
            rows = [(signal.title, signal.before, signal.after, signal.unit) for signal in signals]
            click.echo("\n".join(tab_lines(("signal", before, after, "unit"), rows)))
            return
        found = diff_checkpoints(before, after, task_changes(reader, reader.scores(), before, after))
    if as_json:
        click.echo(found.model_dump_json(indent=1))
        return
    click.echo(
        f"{found.after} minus {found.before}: {found.gain:+.3f} [{found.low:+.3f}, {found.high:+.3f}] over "
        f"{found.tasks} held-out tasks, better on {found.better}, worse on {found.worse}"
    )
    changes = [(change.task_id, change.before, change.after, change.text) for change in found.changes[:limit]]
    click.echo("\n".join(tab_lines(("task", found.before, found.after, "text"), changes)))


@click.command()
@click.argument("run")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"))
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
def report(run: str, output: Path, force: bool) -> None:
    """Write a run's report: one HTML file that needs nothing else, for a mail or a ticket.

    RUN may be a folder of `scope eval`, too.
    """
    from scope_selfplay.benchmarking.reading import EvaluationReader, is_evaluation
    from scope_selfplay.inspection.evaluation_report import render_evaluation
    from scope_selfplay.inspection.html_report import render_report
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
