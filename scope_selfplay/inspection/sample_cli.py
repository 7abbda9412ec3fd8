"""`scope tasks sample` and `scope tasks mark`: tasks read whole, and marked by hand. Heavy imports wait."""

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from scope_selfplay.errors import UserError
from scope_selfplay.schemas import CandidateStatus

_FILE = click.Path(path_type=Path, dir_okay=False)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "person"


person_option: Callable[[Any], Any] = click.option(
    "--person", default=user_name, show_default="your user name", help="Who it is; kept with verdicts."
)


@click.command()
@click.argument("run")
@click.option("--n", "count", type=click.IntRange(1), default=10, show_default=True, help="How many tasks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another one draws other tasks.")
@click.option("--iteration", type=int, default=None, help="Of this one alone; 0: held-out tasks.")
@click.option("--status", type=click.Choice([status.value for status in CandidateStatus]), default=None)
@click.option(
    "--sheet", type=_FILE, default=None, help="Write a sheet to be marked, without the judge's words."
)
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as a JSON list.")
def sample(
    run: str,
    count: int,
    seed: int,
    iteration: int | None,
    status: str | None,
    *,
    sheet: Path | None,
    as_json: bool,
) -> None:
    """Show random tasks whole: document, gates, rubric, answers with their verdicts.

    Of all that were written, accepted or not, unless --status says which. With --sheet they are written to a file for
    marking; `scope tasks mark` holds the marks against the judge.
    """
    from scope_selfplay.inspection.sample import sampled_tasks, write_sheet
    from scope_selfplay.inspection.text import describe_task
    from scope_selfplay.store.files import write_atomic
    from scope_selfplay.store.query import Judgements
    from scope_selfplay.store.reader import RunReader, find_run

    if sheet is not None and sheet.exists():
        raise UserError(f"--sheet {sheet}: is there already, perhaps with marks; give another file")
    with RunReader(find_run(run)) as reader:
        chosen = CandidateStatus(status) if status else None
        records = sampled_tasks(reader, count, seed=seed, iteration=iteration, status=chosen)
    if not records:
        raise UserError(
            f"{run}: no such task has been written yet; `scope tasks stats {run}` counts what there is"
        )
    if sheet is not None:
        write_atomic(sheet, write_sheet(records, seed=seed, run=run))
        click.echo(sheet)
        return
    if as_json:
        click.echo("[" + ",\n".join(record.model_dump_json(indent=1) for record in records) + "]")
        return
    lines: list[str] = []
    for number, record in enumerate(records, start=1):
        lines += [f"#### {number} of {len(records)}"]
        lines += [*describe_task(record, (), (), Judgements(), passages=False), "", ""]
    (click.echo_via_pager if sys.stdout.isatty() else click.echo)("\n".join(lines).rstrip())


@click.command()
@click.argument("run")
@click.argument("sheet", type=_FILE)
@person_option
def mark(run: str, sheet: Path, person: str) -> None:
    """Keep the marks of a sheet of `scope tasks sample`, and show how far the judge agrees with people.

    What this person has marked before stays as it was.
    """
    from scope_selfplay.inspection.people import people
    from scope_selfplay.inspection.sample import read_marks
    from scope_selfplay.inspection.text import people_lines
    from scope_selfplay.store.human import HumanFolder
    from scope_selfplay.store.reader import RunReader, find_run

    try:
        text = sheet.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{sheet}: cannot be read ({error}); give a sheet of `scope tasks sample`") from None
    with RunReader(find_run(run)) as reader:
        human = HumanFolder(reader.folder)
        marks = read_marks(text, str(sheet), reader, person)
        before = {said.question for said in human.verdicts() if said.person == person}
        new = [each for each in marks if each.question not in before]
        human.add_verdicts(new)
        click.echo("\n".join(people_lines(people(reader))).strip())
    click.echo(f"{len(new)} marks kept, {len(marks) - len(new)} were there before", err=True)
