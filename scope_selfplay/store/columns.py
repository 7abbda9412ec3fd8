"""The kinds of records, their files, and records as columns: JSON lines to parquet, and rows back to values.

The lines remain the source of truth (appended to, resumed, compared byte by byte); the parquet beside them holds
the same records in columns, compressed, in small row groups with Bloom filters on the ids, so that one task is found
among many without reading the rest. The schema is derived from the pydantic models, so the two cannot differ. Text
and judgements are kept, token ids are not: those belong to training rows. A text column holds any text, even one that
is not a status, reason or fault: a row that is not a valid value is an error that names its stage and id.
"""

import types
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import (
    Candidate,
    Comparison,
    Grade,
    Passage,
    Rollout,
    Rubric,
    Score,
    Selection,
    Turn,
    Value,
)
from scope_selfplay.store.files import (
    Appender,
    check_lines,
    disk_faults,
    line_blocks,
    part_of,
    read_records,
    read_value,
    sync_folder,
    write_atomic,
    write_records,
)
from scope_selfplay.store.folder import RunFolder, Stage, StageFolder

ROWS_PER_GROUP = 512
_BLOCK = 32 << 20

Model = TypeVar("Model", bound=BaseModel)

_LEFT_OUT: Mapping[type[BaseModel], frozenset[str]] = {
    # What is for training only, and what no passage has.
    Turn: frozenset({"prompt_ids", "ids", "logprobs"}),
    Passage: frozenset({"metadata"}),
}
_SCALARS: dict[type, pa.DataType] = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_ABSENT = object()
_ID_FIELDS = ("id", "rollout_id", "first_id", "candidate_ids", "task_id")


class RecordKind(StrEnum):
    """The kinds of records that a stage folder may hold, each in `<kind>.jsonl` and later `<kind>.parquet`."""

    CANDIDATES = "candidates"
    ROLLOUTS = "rollouts"
    GRADES = "grades"
    COMPARISONS = "comparisons"
    SELECTIONS = "selections"
    SCORES = "scores"
    RUBRICS = "rubrics"

    @property
    def model(self) -> type[Value]:
        return _KINDS[self][0]

    @property
    def looked_up(self) -> tuple[str, ...]:
        """Columns that single records are looked up by."""
        return _KINDS[self][1]

    @property
    def key(self) -> tuple[str, ...]:
        """What tells records of this kind apart."""
        return _KINDS[self][2]


_KINDS: Mapping[RecordKind, tuple[type[Value], tuple[str, ...], tuple[str, ...]]] = {
    RecordKind.CANDIDATES: (Candidate, ("id",), ("id",)),
    RecordKind.ROLLOUTS: (Rollout, ("id", "subject_id"), ("id",)),
    RecordKind.GRADES: (Grade, ("rollout_id",), ("rollout_id",)),
    RecordKind.COMPARISONS: (Comparison, ("first_id", "second_id"), ("first_id", "second_id", "repeat")),
    RecordKind.SELECTIONS: (Selection, (), ("candidate_ids", "repeat")),
    RecordKind.SCORES: (Score, ("rollout_id",), ("rollout_id", "scale", "criterion")),
    RecordKind.RUBRICS: (Rubric, ("task_id",), ("task_id",)),
}
KIND_OF: Mapping[type[Value], RecordKind] = {model: kind for kind, (model, _, _) in _KINDS.items()}


def write_parquet(folder: Path) -> dict[RecordKind, int]:
    """Write `<kind>.parquet` beside every `<kind>.jsonl` of a stage folder; the rows of each.

    Raises RecordError with file and line where the lines are damaged, StorageError when the disk is full.
    """
    found = [kind for kind in RecordKind if (folder / f"{kind}.jsonl").exists()]
    return {
        kind: write_columns(
            folder / f"{kind}.jsonl", folder / f"{kind}.parquet", kind.model, looked_up=kind.looked_up
        )
        for kind in found
    }


def write_columns(
    source: Path, target: Path, model: type[BaseModel], *, looked_up: Sequence[str] = ()
) -> int:
    """Write the complete lines of a file as parquet, block by block, atomically; the number of rows.

    `looked_up` are the columns that single records are found by.
    """
    rows = 0
    temporary = part_of(target)
    # Without a number arrow makes them for a million values, 65 MB in memory.
    filters = {column: {"ndv": ROWS_PER_GROUP} for column in looked_up}
    with disk_faults(target):
        try:
            with (
                source.open("rb") as file,
                pq.ParquetWriter(
                    temporary, arrow_schema(model), compression="zstd", bloom_filter_options=filters
                ) as writer,
            ):
                for block in line_blocks(file, _BLOCK):
                    table = table_from_lines(block, model, source)
                    writer.write_table(table, row_group_size=ROWS_PER_GROUP)
                    rows += table.num_rows
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
    return rows


def has_columns_of(path: Path, kind: RecordKind) -> bool:
    """Whether a parquet file has this version's columns. Raises RecordError where it is not a parquet file."""
    try:
        return bool(pq.read_schema(path).equals(arrow_schema(kind.model)))
    except pa.ArrowException as error:
        raise RecordError(f"{path}: not a parquet file ({error}); restore it") from None


def table_from_lines(data: bytes, model: type[BaseModel], source: Path) -> pa.Table:
    """Complete JSON lines as columns. Raises RecordError that names the line of `source` for damage."""
    schema = arrow_schema(model)
    if not data:
        return schema.empty_table()
    longest = max(map(len, data.split(b"\n")))
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            # A record must fit into one block of the reader.
            read_options=pj.ReadOptions(block_size=max(1 << 20, 2 * longest + 2)),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        # The slow reader knows the line.
        check_lines(source, model)
        raise RecordError(f"{source}: cannot be read as {model.__name__} records ({error})") from None
    if table.num_rows != data.count(b"\n"):
        check_lines(source, model)
    return table.cast(schema)


@cache
def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """One column per field. Raises TypeError for a field of a type that has no column."""
    required = {
        name
        for name, field in model.model_fields.items()
        if field.is_required() and not _allows_none(field.annotation)
    }
    return pa.schema([column.with_nullable(column.name not in required) for column in _fields(model)])


def record_from(model: type[Model], row: Mapping[str, Any]) -> Model:
    """The value in a row of columns. Raises pydantic's ValidationError where it is not valid."""
    return model.model_validate(_plain(model, row))


def record_of(run: Path, model: type[Model], row: Mapping[str, Any]) -> Model:
    """As `record_from`, for a row of a view of a run. Raises RecordError that names its stage and id."""
    try:
        return record_from(model, row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        name = next((f" {row[column]}" for column in _ID_FIELDS if row.get(column)), "")
        stage = f"iteration {row.get('iteration')}, {row.get('stage')}"
        raise RecordError(
            f"{run}: {stage}:{name} is damaged ({model.__name__}.{field}: {first['msg']}, found "
            f"{str(first['input'])[:80]!r}); restore the files of that stage"
        ) from None


def _fields(model: type[BaseModel]) -> list[pa.Field]:
    # Nullable all, because Arrow's JSON reader refuses a null struct whose members are required.
    return [pa.field(name, _arrow_type(field.annotation)) for name, field in _kept(model).items()]


def _kept(model: type[BaseModel]) -> dict[str, FieldInfo]:
    left_out = _LEFT_OUT.get(model, frozenset())
    return {name: field for name, field in model.model_fields.items() if name not in left_out}


def _arrow_type(annotation: Any) -> pa.DataType:
    annotation = _without_none(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return pa.list_(_arrow_type(arguments[0]))
    if origin is dict and _is_enum(arguments[0]):
        # One member for each key that there may be: the same shape as in JSON.
        return pa.struct([(key.value, _arrow_type(arguments[1])) for key in arguments[0]])
    if _is_enum(annotation):
        return pa.string()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct(_fields(annotation))
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        parts = {_arrow_type(part) for part in annotation.__annotations__.values()}
        if len(parts) == 1:
            return pa.list_(parts.pop())
    raise TypeError(f"{annotation} has no column; give it one in store.parquet")


def _plain(annotation: Any, value: Any) -> Any:
    """A row's value without what the columns added: nulls for absent keys and for fields that have a default."""
    if value is None:
        return None if _allows_none(annotation) else _ABSENT
    annotation = _without_none(annotation)
    if get_origin(annotation) is tuple:
        return [_plain(get_args(annotation)[0], item) for item in value]
    if get_origin(annotation) is dict:
        items = {key: item for key, item in value.items() if item is not None}
        return {key: _plain(get_args(annotation)[1], item) for key, item in items.items()}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        members = {
            name: _plain(field.annotation, value[name])
            for name, field in _kept(annotation).items()
            if name in value
        }
        return {name: member for name, member in members.items() if member is not _ABSENT}
    return value


def _allows_none(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def _without_none(annotation: Any) -> Any:
    if not _allows_none(annotation):
        return annotation
    (left,) = (argument for argument in get_args(annotation) if argument is not type(None))
    return left


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def append_records(folder: StageFolder, records: Iterable[Value]) -> None:
    """Add records of any kinds, each to its file; rollouts without their token ids."""
    texts = [each.without_ids() if isinstance(each, Rollout) else each for each in records]
    for kind, of_kind in groupby(sorted(texts, key=_kind_of), key=_kind_of):
        with Appender(folder.path / f"{kind}.jsonl") as file:
            file.append(*of_kind)


def _kind_of(record: Value) -> RecordKind:
    return KIND_OF[type(record)]


def begin_records(folder: StageFolder, processes: int) -> None:
    """Called by the first process before any other records something.

    Another number of processes divides the tasks anew. What the processes before recorded is merged then, so that it
    is older than whatever follows, whoever records it.
    """
    noted = folder.work / "processes"
    before = int(noted.read_text()) if noted.exists() else processes
    if before != processes:
        merge_records(folder)
        for path in folder.work.glob("rank-*/*.jsonl"):
            path.unlink()
    folder.work.mkdir(parents=True, exist_ok=True)
    write_atomic(noted, f"{processes}\n")


def merge_records(folder: StageFolder) -> None:
    """Keep the newest record of every id, from all processes: a resumed training repeats some steps.

    Judgements come as rollouts end, so they are put into an order that no timing changes.
    """
    others = [StageFolder(path) for path in sorted(folder.work.glob("rank-*"))]
    for kind in RecordKind:
        # The leader's own records first: they may hold what earlier starts of others have left.
        paths = [each.path / f"{kind}.jsonl" for each in (folder, *others)]
        if any(path.exists() for path in paths):
            records = {
                tuple(getattr(record, name) for name in kind.key): record
                for path in paths
                for record in read_records(path, kind.model)
            }
            judged = kind not in (RecordKind.CANDIDATES, RecordKind.ROLLOUTS)
            kept = sorted(records, key=str) if judged else list(records)
            write_records(folder.path / f"{kind}.jsonl", [records[each] for each in kept])


class TaskTarget(Value):
    accepted: int
    target: int

    @property
    def missed(self) -> bool:
        return self.accepted < self.target


def read_task_target(folder: RunFolder, iteration: int) -> TaskTarget | None:
    """None where the stage has not ended. Raises RecordError where the file is damaged."""
    file = folder.stage(iteration, Stage.TASKS).target
    return read_value(file, TaskTarget, "restore it, or remove the stage folder")
