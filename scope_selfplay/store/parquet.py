"""From JSON lines to parquet: what a finished stage is read from.

The lines stay the record of truth (appended to, resumed, compared byte by byte); the parquet beside them holds
the same records in columns, compressed, in small row groups with Bloom filters on the ids, so that one task
is found among many without reading the rest.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.errors import RecordError
from scope_selfplay.store.atomic import disk_faults, part_of, sync_folder
from scope_selfplay.store.columns import RecordKind, arrow_schema, as_current
from scope_selfplay.store.jsonl import check_lines

ROWS_PER_GROUP = 512
_BLOCK = 32 << 20
# Columns that single records are looked up by.
_LOOKED_UP = {
    RecordKind.CANDIDATES: ("id",),
    RecordKind.ROLLOUTS: ("id", "subject_id"),
    RecordKind.GRADES: ("rollout_id",),
    RecordKind.COMPARISONS: ("first_id", "second_id"),
    RecordKind.SELECTIONS: (),
    RecordKind.SCORES: ("rollout_id",),
}


def write_parquet(folder: Path) -> dict[RecordKind, int]:
    """Write `<kind>.parquet` beside every `<kind>.jsonl` of a stage folder; the rows of each.

    Raises RecordError with file and line where the lines are damaged, StorageError when the disk is full.
    """
    lines = {kind: folder / f"{kind}.jsonl" for kind in RecordKind}
    return {
        kind: compact(path, path.with_suffix(".parquet"), kind)
        for kind, path in lines.items()
        if path.exists()
    }


def compact(source: Path, target: Path, kind: RecordKind) -> int:
    """Write the complete lines of a file as parquet, block by block, atomically; the number of rows."""
    rows = 0
    with _writer(target, kind) as writer, source.open("rb") as file:
        for block in line_blocks(file):
            table = table_from_lines(block, kind.model, source)
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            rows += table.num_rows
    return rows


def is_current(path: Path, kind: RecordKind) -> bool:
    """Whether a parquet file has today's columns. Raises RecordError where it is none."""
    try:
        return bool(pq.read_schema(path).equals(arrow_schema(kind.model)))
    except pa.ArrowException as error:
        raise RecordError(f"{path}: is no parquet file ({error}); restore it") from None


def rewrite(source: Path, target: Path, kind: RecordKind) -> None:
    """Write a parquet file of another version in today's columns, group by group, atomically.

    Raises RecordError where a column that every record needs is absent or of another type.
    """
    with _writer(target, kind) as writer, pq.ParquetFile(source) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            try:
                table = as_current(pa.Table.from_batches([batch]), kind.model)
            except (ValueError, TypeError, pa.ArrowException) as error:
                raise RecordError(
                    f"{source}: cannot be read as {kind.model.__name__} records ({error}); "
                    "read it with the version of scope that wrote it"
                ) from None
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)


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


def complete_lines(data: bytes) -> bytes:
    """What stands before the last line end; the rest was torn by a kill or is being written."""
    return data[: data.rfind(b"\n") + 1]


def line_blocks(file: BinaryIO, size: int = _BLOCK) -> Iterator[bytes]:
    """The complete lines from where a file stands, about `size` bytes at a time; a longer line comes whole."""
    rest = b""
    while data := file.read(size):
        data = rest + data
        whole = complete_lines(data)
        rest = data[len(whole) :]
        if whole:
            yield whole


@contextlib.contextmanager
def _writer(target: Path, kind: RecordKind) -> Iterator[pq.ParquetWriter]:
    """`target` stands, whole, once this is left without an error."""
    temporary = part_of(target)
    with disk_faults(target):
        try:
            with pq.ParquetWriter(temporary, arrow_schema(kind.model), **_layout(kind)) as writer:
                yield writer
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)


def _layout(kind: RecordKind) -> dict[str, Any]:
    return {
        "compression": "zstd",
        "bloom_filter_options": bloom_filters(_LOOKED_UP[kind], ROWS_PER_GROUP),
    }


def bloom_filters(columns: Iterable[str], rows: int) -> dict[str, dict[str, int]]:
    """Filters for groups of `rows` values. Without a number arrow makes each for a million, of 65 MB in memory."""
    return {column: {"ndv": rows} for column in columns}
