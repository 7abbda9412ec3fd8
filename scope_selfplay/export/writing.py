"""`scope export`: the accepted tasks of a run in files for another trainer or evaluator.

One file per split and a card, atomically, a batch of tasks at a time.
"""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from scope_selfplay.errors import RecordError, UserError
from scope_selfplay.export.formats import FORMATS, ExportFormat, Row, example_of
from scope_selfplay.store.files import disk_faults, part_of, write_atomic
from scope_selfplay.store.parquet import RecordKind
from scope_selfplay.store.ratings import KeptSolver, kept_solver
from scope_selfplay.store.reader import RunReader, find_run

_BATCH = 1000
# Consumers know a held-out split by this name.
_HELD_OUT = "test"


class Exported(NamedTuple):
    path: Path
    tasks: int


@click.command()
@click.argument("run")
@click.option(
    "--format", "format_name", type=click.Choice([*FORMATS]), required=True, help="Who is going to read it."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write; new or empty."
)
@click.option(
    "--iteration", "iterations", type=int, multiple=True, help="Only these iterations; several allowed."
)
def export(run: str, format_name: str, output: Path, iterations: tuple[int, ...]) -> None:
    """Write the accepted tasks of RUN in another library's shape.

    RUN is a run folder, or a name under runs/.
    """
    with RunReader(find_run(run)) as reader:
        for path, tasks in export_tasks(reader, format_name, output, iterations=iterations):
            click.echo(f"{path}\t{tasks}")
    click.echo(FORMATS[format_name].use.replace("FOLDER", str(output)), err=True)


def export_tasks(
    reader: RunReader, format_name: str, target: Path, *, iterations: Iterable[int] = ()
) -> list[Exported]:
    """Write the accepted tasks as `train` and the held-out tasks of iteration 0 as `test`.

    `iterations` narrows `train`; none means all. Raises RecordError when nothing was accepted, UserError when
    the target is in use or an iteration that was asked for has no accepted task.
    """
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: is a file; give a folder, new or empty")
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target}: is not empty; give another folder")
    wanted = _checked(reader, set(iterations)) or [number for number in reader.iterations() if number > 0]
    chosen = FORMATS[format_name]
    splits = {"train": wanted, _HELD_OUT: [0]}
    with disk_faults(target):
        target.mkdir(parents=True, exist_ok=True)
        found = [_write_split(reader, chosen, target, split, numbers) for split, numbers in splits.items()]
    written = [file for file in found if file.tasks]
    if not written:
        raise RecordError(f"{reader.folder.path}: has no accepted task yet; nothing was exported")
    if chosen.environment:
        write_atomic(
            target / chosen.environment, (Path(__file__).parent / chosen.environment).read_text("utf-8")
        )
    run = str(reader.settings.get("name", reader.folder.path.name))
    write_atomic(target / "README.md", _card(run, format_name, written, kept_solver(reader.folder)))
    return written


def _checked(reader: RunReader, wanted: set[int]) -> list[int]:
    """The wanted iterations in order. Raises UserError for one without accepted training tasks."""
    rows = reader.sql(
        "SELECT DISTINCT iteration FROM candidates WHERE stage = 'tasks' AND status = 'accepted' AND iteration > 0"
    )
    made = {row["iteration"] for row in rows}
    if missing := sorted(wanted - made):
        there = ", ".join(map(str, sorted(made))) or "none"
        raise UserError(
            f"{reader.folder.path}: found no accepted training task of iteration {', '.join(map(str, missing))}; "
            f"iterations that have some: {there} (the held-out tasks of iteration 0 are always exported, as `test`)"
        )
    return sorted(wanted)


def _write_split(
    reader: RunReader, chosen: ExportFormat, target: Path, split: str, iterations: list[int]
) -> Exported:
    path = target / f"{split}.{'jsonl' if chosen.is_lines else 'parquet'}"
    accepted = "iteration = ? AND stage = 'tasks' AND status = 'accepted' AND rubric IS NOT NULL"
    candidates = (
        candidate
        for iteration in iterations
        for candidate in reader.records(RecordKind.CANDIDATES, accepted, [iteration])
    )
    rows = (chosen.row(example_of(candidate, split, index)) for index, candidate in enumerate(candidates))
    write = _write_lines if chosen.is_lines else partial(_write_parquet, columns=chosen.columns())
    temporary = part_of(path)
    try:
        count = write(temporary, rows)
        if count:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, count)


def _write_lines(path: Path, rows: Iterator[Row]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterator[Row], *, columns: pa.Schema) -> int:
    count = 0
    with pq.ParquetWriter(path, columns, compression="zstd") as writer:
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=columns))
            count += len(batch)
    return count


def _card(run: str, format_name: str, written: list[Exported], kept: KeptSolver | None) -> str:
    splits = [{"split": file.path.stem, "path": file.path.name} for file in written]
    configs = [{"config_name": "default", "data_files": splits}]
    front = {"pretty_name": f"{run} for {format_name}", "configs": configs}
    counts = "\n".join(f"- `{file.path.name}`: {file.tasks:,} tasks" for file in written)
    ruling = f"The run kept the Solver {kept.words}.\n\n" if kept else ""
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n# {run} for {format_name}\n\n{counts}\n\n{ruling}"
        f"How it is read: {FORMATS[format_name].use}\n"
    )
