"""The folder that DuckDB sees: every parquet file of a run under its iteration and stage.

    <scratch>/place=<n>/iteration=<t>/stage=<stage>/<kind>.parquet

A finished file is a link to the run's own, a live part is a file. The folder names become columns, so a question
about one stage opens that stage's files only; `place` keeps the records in the order of the loop. It also keeps
the run's own path, in which DuckDB would read * and [ as patterns, out of every query.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from scope_selfplay.store.columns import RecordKind, arrow_schema
from scope_selfplay.store.folders import Stage

# Room for the parts of one stage, and for the rows of one part.
_PARTS, _ROWS = 1 << 20, 1 << 32


class ReaderFolder:
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        for kind in RecordKind:
            # What a view looks like before there is any record.
            # A writer that writes nothing: arrow's empty tables import pandas, which is 50 MB and half a second.
            with pq.ParquetWriter(self._path(0, -1, "none", kind), arrow_schema(kind.model)):
                pass

    def place(self, iteration: int, stage: Stage, kind: RecordKind, part: int = 0) -> Path:
        """Where a file has to lie; its folder is made."""
        order = iteration * len(Stage) + list(Stage).index(stage)
        return self._path(order * _PARTS + part, iteration, stage.value, kind)

    def selection(self, kind: RecordKind, files: Sequence[Path]) -> str:
        """A query for all records in files, with the columns `iteration`, `stage` and `ordinal`."""
        paths = ", ".join(f"'{file}'" for file in files or [self._path(0, -1, "none", kind)])
        types = "{'place': BIGINT, 'iteration': INTEGER, 'stage': VARCHAR}"
        return (
            f"SELECT place * {_ROWS} + file_row_number AS ordinal, * EXCLUDE (place, file_row_number) "
            f"FROM read_parquet([{paths}], file_row_number = true, hive_partitioning = true, hive_types = {types})"
        )

    def _path(self, place: int, iteration: int, stage: str, kind: RecordKind) -> Path:
        folder = self._scratch / f"place={place}" / f"iteration={iteration}" / f"stage={stage}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{kind}.parquet"
