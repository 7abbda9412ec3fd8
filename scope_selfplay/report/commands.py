"""`scope documents`, `tasks ...`, `report`, `view`: what a run reads and has made, in a terminal, file or browser."""

import contextlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from scope_selfplay.base.errors import UserError
from scope_selfplay.base.terminal import FILE, PATH
from scope_selfplay.base.values import CandidateStatus, CorpusReader, Gate, Reason
from scope_selfplay.config.load import CONFIGS
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.report import SAMPLES
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.query import Flaw, Sort, Suspect


def _one_of(names: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([member.value for member in names])


@click.group()
def tasks() -> None:
    """List, show and compare tasks; RUN is a run folder, or a name under runs/."""


@tasks.command("ls")
@click.argument("run")
@click.option("--iteration", type=click.IntRange(0), help="0 are the held-out tasks.")
@click.option("--stage", type=click.Choice(["tasks", "challenger", "all"]), default="tasks")
@click.option("--status", type=_one_of(CandidateStatus))
@click.option("--reason", type=_one_of(Reason))
@click.option("--gate", type=_one_of(Gate), help="Refused by this gate, whatever it ended as.")
@click.option("--type", help="Task type.")
@click.option("--searches", type=click.IntRange(0), help="Searches made while it was written.")
@click.option("--flaw", type=_one_of(Flaw), help="A demand without criterion, a criterion without evidence.")
@click.option("--suspect", type=_one_of(Suspect), help="What of it is suspect of injection.")
@click.option("--min", "low", type=click.FloatRange(0, 1), help="Least mean score.")
@click.option("--max", "high", type=click.FloatRange(0, 1), help="Greatest mean score.")
@click.option(
    "--text", default="", show_default=False, help="Part of the task, its document's id or its own."
)
@click.option("--sort", type=_one_of(Sort), default="order")
@click.option("--desc", "descending", is_flag=True, help="The other way round.")
@click.option("--limit", type=click.IntRange(1), default=50)
@click.option("--offset", type=click.IntRange(0), default=0)
@click.option("--json", "as_json", is_flag=True)
def ls(run: str, as_json: bool, stage: str, **filters: Any) -> None:
    """List candidates, accepted and rejected; one a line with tabs between cells where it is piped."""
    from scope_selfplay.report.record import plain_list, show_list
    from scope_selfplay.store.query import TaskQuery

    query = TaskQuery.model_validate({**filters, "stage": None if stage == "all" else stage})
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
@click.option("--iteration", type=int)
@click.option("--passages", is_flag=True, help="Print what every search found in full.")
@click.option("--json", "as_json", is_flag=True)
def show(run: str, task: str, iteration: int | None, passages: bool, as_json: bool) -> None:
    """Show one candidate: document, gates, rubric, every rollout with its verdicts, comparisons, provenance.

    TASK is the id of a candidate or of a task, or its beginning; in a folder of `scope eval` that of an item.
    """
    from pydantic_core import to_json

    from scope_selfplay.report.record import describe_item, describe_task, whole_task

    record: Any
    if (evaluation := _evaluation(run)) is not None:
        record = evaluation.item(task)
        lines = describe_item(record, passages=passages)
    else:
        with _reader(run) as reader:
            record = whole_task(reader, task, iteration=iteration)
        lines = describe_task(record, passages=passages)
    if as_json:
        click.echo(to_json(record, indent=1).decode())
    else:
        (click.echo_via_pager if sys.stdout.isatty() else click.echo)("\n".join(lines))


@tasks.command("diff")
@click.argument("run")
@click.argument("before")
@click.argument("after")
@click.option("--limit", type=click.IntRange(0), default=20, help="Changed tasks to print.")
@click.option("--json", "as_json", is_flag=True)
def diff(run: str, before: str, after: str, limit: int, as_json: bool) -> None:
    """Compare two checkpoints (S_0 S_1) on the same held-out tasks, or items where RUN is a folder of `scope eval`."""
    from scope_selfplay.report.record import diff_checkpoints, diff_lines, task_changes

    if (evaluation := _evaluation(run)) is not None:
        changes = evaluation.changes(before, after)
    else:
        with _reader(run) as reader:
            changes = task_changes(reader, reader.scores(), before, after)
    found = diff_checkpoints(before, after, changes)
    click.echo(found.model_dump_json(indent=1) if as_json else "\n".join(diff_lines(found, limit)))


@click.command()
@click.argument("run")
@click.option(
    "-o", "--output", type=FILE, help="Write one HTML file that needs nothing else, with sample tasks."
)
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    show_default=str(SAMPLES),
    help="Accepted tasks of each iteration in it.",
)
@click.option("--json", "as_json", is_flag=True)
def report(run: str, output: Path | None, force: bool, samples: int | None, as_json: bool) -> None:
    """Show what a run came to: held-out results, funnels, scores, curves, the health of the self-play with warnings.

    RUN may be a folder of `scope eval`, too: its leaderboard, differences, costs.
    """
    from scope_selfplay.report.health import examine
    from scope_selfplay.report.overview import run_sections
    from scope_selfplay.report.rendering import render_evaluation, render_report
    from scope_selfplay.report.sections import evaluation_sections, json_of, text_of
    from scope_selfplay.store.files import write_atomic

    if output is not None and output.exists() and not force:
        raise UserError(f"-o {output}: is there already; give --force to replace it, or another file")
    if output is not None and not output.parent.is_dir():
        raise UserError(f"-o {output}: there is no folder {output.parent}; make it, or give another one")
    evaluation = _evaluation(run)
    if samples is not None and (evaluation or output is None):
        raise UserError("--samples: counts tasks of a run in the file of -o; leave it out, or give -o")
    opened: Any = contextlib.nullcontext() if evaluation else _reader(run)
    with opened as reader:
        if output is not None:
            write_atomic(
                output,
                render_evaluation(evaluation) if evaluation else render_report(reader, samples or SAMPLES),
            )
            click.echo(output)
            return
        sections = evaluation_sections(evaluation) if evaluation else run_sections(reader, examine(reader))
    if as_json:
        click.echo(evaluation.result().model_dump_json(indent=1) if evaluation else json_of(sections))
    else:
        click.echo("\n".join(text_of(sections)))


def _evaluation(run: str) -> Any:
    """The reader of a folder of `scope eval`; None for a run."""
    from scope_selfplay.evaluation.folder import EvaluationReader, is_evaluation

    return EvaluationReader(Path(run)) if is_evaluation(Path(run)) else None


def _reader(run: str) -> Any:
    from scope_selfplay.store.reader import RunReader, find_run

    return RunReader(find_run(run))


@click.command()
@click.argument("run")
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0 takes a free one.")
@click.option("--base-path", default="/", help="Path in front of every page, behind an ingress.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that is answered besides this machine's own, * for any; may be repeated.",
)
def view(run: str, host: str, port: int, base_path: str, hosts: tuple[str, ...]) -> None:
    """Show a run in the browser: its numbers, tasks, rollouts, verdicts and comparisons.

    RUN is a run folder, or a name under runs/; it may still be running, and is only read. Or a folder of runs, or of
    `scope eval`.
    """
    from scope_selfplay.base.errors import ConfigError, imports_for
    from scope_selfplay.base.terminal import end_on_sigterm
    from scope_selfplay.store.reader import find_run

    with imports_for("scope view", "view"):
        from scope_selfplay.report.app import Site, serve_run
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


SHOWN = 12


@click.command("documents")
@click.argument("path", type=PATH)
@click.option("--domain", help="Prompt pack that says how a folder is read: a folder or a name.")
@click.option(
    "--reader",
    type=click.Choice(["jsonl", "text_files", "markdown_sections"]),
    help="Read a folder in this way instead.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting of a config.")
@click.option("--strict", is_flag=True, help="Stop at the first file that cannot be read.")
@click.option("--near", is_flag=True, help="Leave out near copies, too.")
@click.option("-o", "--output", type=PATH, help="Write the documents (.jsonl) or the page (.html).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def documents(
    path: Path,
    domain: str | None,
    reader: str | None,
    overrides: tuple[str, ...],
    output: Path | None,
    *,
    strict: bool,
    near: bool,
    as_json: bool,
) -> None:
    """Read source documents as a run would, and report what became of them: files left out, copies, what is suspect.
    Those of a run's config (.yaml) are shown cut.

    The documents that -o writes are a corpus themselves: for corpus.path of a run, `scope index build`, or an engine
    of yours.
    """
    from scope_selfplay.base.text import one_line
    from scope_selfplay.corpus.read import read_documents
    from scope_selfplay.corpus.screen import LeftOut, Screened, describe_corpus, screen

    skipped: dict[Path, str] = {}
    if path.suffix in CONFIGS:
        from scope_selfplay.run.commands import documents_of

        if reader or domain:
            raise click.UsageError("a run's config names its domain: --domain and --reader are for documents")
        left_out: list[LeftOut] = []
        own = [*["corpus.strict=true"] * strict, *["corpus.duplicates=near"] * near]
        kept = documents_of(path, [*overrides, *own], skipped=skipped, left_out=left_out)
        read, screened = [*kept, *(each.document for each in left_out)], Screened(kept, left_out)
    elif overrides:
        raise click.UsageError("--set changes a run's config, and PATH is none")
    else:
        chosen = None if reader is None else CorpusReader(reader)
        if chosen is None and domain is not None:
            chosen = load_pack(pack_path(domain)).domain.corpus_reader
        read = read_documents(path, chosen, skipped, strict=strict)
        screened = screen(read, CorpusConfig(duplicates="near" if near else "exact"))
    tables = [table for table in describe_corpus(path, read, skipped, screened, whole=as_json) if table.rows]
    if output is not None and output.suffix == ".html":
        from scope_selfplay.report.rendering import saved_page
        from scope_selfplay.report.sections import Section

        write_atomic(output, saved_page(str(path), [Section("Documents", tables)]))
    elif output is not None:
        write_records(output, screened.kept)
    if as_json:
        found = {table.title: {what: (count, say) for what, count, say in table.rows} for table in tables}
        click.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    click.echo("\n".join(line for table in tables for line in table.text()) + "\n")
    for document in screened.kept[:SHOWN]:
        click.echo(f"{one_line(document.id)}\t{len(document.text)}\t{one_line(document.title)}")
    if len(screened.kept) > SHOWN:
        click.echo(f"... and {len(screened.kept) - SHOWN} more (-o corpus.jsonl writes all)", err=True)
