"""From JSON lines to parquet, which a finished stage is read from.

The lines remain the source of truth (appended to, resumed, compared byte by byte); the parquet beside them holds
the same records in columns, compressed, in small row groups with Bloom filters on the ids, so that one task is found
among many without reading the rest.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.errors import RecordError
from scope_selfplay.store.files import check_lines, disk_faults, part_of, sync_folder
from scope_selfplay.store.parquet import RecordKind, arrow_schema

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
    temporary = part_of(target)
    filters = bloom_filters(_LOOKED_UP[kind], ROWS_PER_GROUP)
    with disk_faults(target):
        try:
            with (
                source.open("rb") as file,
                pq.ParquetWriter(
                    temporary, arrow_schema(kind.model), compression="zstd", bloom_filter_options=filters
                ) as writer,
            ):
                for block in line_blocks(file):
                    table = table_from_lines(block, kind.model, source)
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


def line_blocks(file: BinaryIO, size: int = _BLOCK) -> Iterator[bytes]:
    """The complete lines from a file's position on, about `size` bytes at a time; a longer line comes whole."""
    rest = b""
    while data := file.read(size):
        data = rest + data
        # What follows the last line end was torn by a kill or is being written.
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        if whole:
            yield whole


def bloom_filters(columns: Iterable[str], rows: int) -> dict[str, dict[str, int]]:
    """Filters for groups of `rows` values; without a number arrow makes them for a million values, 65 MB in memory."""
    return {column: {"ndv": rows} for column in columns}
