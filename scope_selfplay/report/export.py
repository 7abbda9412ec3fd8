"""One accepted task as a row of each format. Pure.

Every format carries the rubric in the place where its consumer looks for what an answer is measured by. A known
right answer (`Task.reference`) is passed on; none is made up where there is none. To add a format, write its row
function and give it an entry in `FORMATS`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq

from scope_selfplay.base.errors import RecordError, UserError
from scope_selfplay.base.terminal import PATH
from scope_selfplay.base.values import Candidate, Criterion, Rubric, Task
from scope_selfplay.store.card import exam_lines, front_matter
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import disk_faults, part_of, write_atomic
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.store.ratings import kept_solver
from scope_selfplay.store.reader import RunReader, find_run

Row = dict[str, Any]

SOURCE = "scope-selfplay"
ABILITY = "research"


@dataclass(frozen=True)
class Example:
    """An accepted task with its rubric, and its index in its split."""

    task: Task
    rubric: Rubric
    mean: float | None
    iteration: int
    split: str
    index: int
    document: Mapping[str, str]
    """What is said of its source document: url, date, language, licence."""


@dataclass(frozen=True)
class ExportFormat:
    """How a task becomes a row, and in one sentence how its consumer reads the files."""

    row: Callable[[Example], Row]
    use: str
    is_lines: bool = False
    """JSON lines instead of parquet."""
    environment: str = ""
    """A module of this package that lies beside the files: it makes an environment of them."""

    def columns(self) -> pa.Schema:
        """The columns of its parquet: those of a task in which every field has a value."""
        return pa.Table.from_pylist([self.row(_COMPLETE)]).schema


def example_of(candidate: Candidate, split: str, index: int, document: Mapping[str, str] = {}) -> Example:
    assert candidate.task and candidate.rubric, "only tasks with a rubric are exported"
    iteration = candidate.provenance.iteration
    return Example(candidate.task, candidate.rubric, candidate.mean, iteration, split, index, document)


def trl_row(example: Example) -> Row:
    """TRL: a conversational `prompt`; every other column reaches the reward functions."""
    return {
        "prompt": _messages(example.task),
        "task_id": example.task.id,
        "task_type": example.task.type,
        "rubric": _criteria(example.rubric),
        "reference": example.task.reference,
        "mean_score": example.mean,
        "iteration": example.iteration,
        "document": _source(example),
    }


def verl_row(example: Example) -> Row:
    """verl: `reward_model.ground_truth` is what a custom reward function gets: the rubric, as JSON."""
    return {
        "data_source": SOURCE,
        "prompt": _messages(example.task),
        "ability": ABILITY,
        "reward_model": {"style": "model", "ground_truth": _rubric_json(example)},
        "extra_info": _extra(example),
    }


def verifiers_row(example: Example) -> Row:
    """verifiers: a chat `prompt`, `answer` a string, `info` JSON, as its environments parse it."""
    info = {**_extra(example), "rubric": _criteria(example.rubric)}
    return {
        "id": example.task.id,
        "prompt": _messages(example.task),
        "answer": example.task.reference or "",
        "info": json.dumps(info, ensure_ascii=False),
    }


def open_instruct_row(example: Example) -> Row:
    """open-instruct: `dataset` names the verifier; its rubric verifier reads query, description and weight."""
    rubrics = [
        {"description": criterion.text, "weight": criterion.weight} for criterion in example.rubric.criteria
    ]
    truth = {"query": example.task.text, "rubrics": rubrics}
    return {
        "messages": _messages(example.task),
        "ground_truth": [json.dumps(truth, ensure_ascii=False)],
        "dataset": ["rubric"],
        "id": example.task.id,
        "document": _source(example),
    }


def search_r1_row(example: Example) -> Row:
    """Search-R1: `golden_answers` for exact match; empty for an open task, whose rubric is in `extra_info`."""
    golden = [example.task.reference] if example.task.reference else []
    return {
        "id": example.task.id,
        "question": example.task.text,
        "golden_answers": golden,
        "data_source": SOURCE,
        "prompt": _messages(example.task),
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": {"target": golden}},
        "extra_info": {**_extra(example), "rubric": _rubric_json(example)},
    }


def inspect_row(example: Example) -> Row:
    """Inspect: `target` is what a model-graded scorer compares with: the criteria, one a line."""
    criteria = "\n".join(f"- {criterion.text}" for criterion in example.rubric.criteria)
    return {
        "id": example.task.id,
        "input": example.task.text,
        "target": example.task.reference or criteria,
        "metadata": {**_extra(example), "rubric": _criteria(example.rubric)},
    }


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.text}]


def _criteria(rubric: Rubric) -> list[Row]:
    return [
        {"text": criterion.text, "priority": criterion.priority.value, "weight": criterion.weight}
        for criterion in rubric.criteria
    ]


def _rubric_json(example: Example) -> str:
    return json.dumps(_criteria(example.rubric), ensure_ascii=False)


def _source(example: Example) -> Row:
    return {
        "id": example.task.document_id,
        **{name: example.document.get(name, "") for name in ("url", "date", "language", "licence", "author")},
    }


def _extra(example: Example) -> Row:
    return {
        "document": _source(example),
        "split": example.split,
        "index": example.index,
        "task_id": example.task.id,
        "task_type": example.task.type,
        "reference": example.task.reference,
        "span": example.task.span and list(example.task.span),
        "search_turns": example.task.search_turns,
        "mean_score": example.mean,
        "iteration": example.iteration,
    }


_COMPLETE = Example(
    task=Task(id="id", text="task", type="type", document_id="document", reference="answer", span=(0, 6)),
    rubric=Rubric(task_id="id", criteria=(Criterion(text="criterion"),)),
    mean=0.5,
    iteration=1,
    split="train",
    index=0,
    document={},
)

FORMATS: Mapping[str, ExportFormat] = {
    "trl": ExportFormat(
        trl_row,
        "GRPOTrainer(train_dataset=load_dataset(FOLDER, split='train'), ...); a reward function gets `rubric` and "
        "`reference`",
    ),
    "verl": ExportFormat(
        verl_row,
        "data.train_files=FOLDER/train.parquet with a custom reward function; ground_truth is the rubric as JSON, "
        "extra_info.reference a short answer",
    ),
    "verifiers": ExportFormat(
        verifiers_row,
        "PYTHONPATH=FOLDER vf-eval scope_tasks --no-push (see its first lines); or TaskData rows, the rubric in `info`",
        environment="scope_tasks.py",
    ),
    "open-instruct": ExportFormat(
        open_instruct_row, "dataset_mixer_list FOLDER 1.0; graded by its rubric verifier"
    ),
    "search-r1": ExportFormat(
        search_r1_row,
        "data.train_files=FOLDER/train.parquet; exact match gives open tasks, which have no golden answer, 0: "
        "use the rubric in extra_info",
    ),
    "inspect": ExportFormat(
        inspect_row,
        "json_dataset('FOLDER/test.jsonl') with a model-graded scorer; `target` is the short answer, else the rubric",
        is_lines=True,
    ),
}


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
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write; new or empty.")
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
    write_atomic(target / "README.md", _card(run, format_name, written, reader.folder))
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
    rows = map(chosen.row, _examples(reader, candidates, split))
    write = _write_lines if chosen.is_lines else partial(_write_parquet, columns=chosen.columns())
    temporary = part_of(path)
    try:
        count = write(temporary, rows)
        if count:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path, count)


def _examples(reader: RunReader, candidates: Iterator[Candidate], split: str) -> Iterator[Example]:
    numbers = count()
    while batch := list(islice(candidates, _BATCH)):
        found = reader.documents({each.provenance.document_id for each in batch})
        for each in batch:
            document = found.get(each.provenance.document_id)
            yield example_of(each, split, next(numbers), document.metadata if document else {})


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


def _card(run: str, format_name: str, written: list[Exported], folder: RunFolder) -> str:
    kept = kept_solver(folder)
    title, splits = f"{run} for {format_name}", {file.path.stem: [file.path.name] for file in written}
    counts = "\n".join(f"- `{file.path.name}`: {file.tasks:,} tasks" for file in written)
    ruling = f"The run kept the Solver {kept.words}.\n\n" if kept else ""
    return (
        f"{front_matter(title, {'default': splits}, 'self-play', 'synthetic')}# {title}\n\n{counts}\n\n{ruling}"
        f"How it is read: {FORMATS[format_name].use}\n" + "\n".join(["", *exam_lines(folder)])
    )
