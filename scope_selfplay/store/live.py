"""A file that is still being appended to, as parquet parts in a scratch folder: only what is new is converted.

A line is parsed once. Where small parts become many they are written again as one, from their columns, so that
keeping up costs a logarithm of what there is, and no more memory than a block of lines.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.errors import RecordError
from scope_selfplay.store.columns import arrow_schema
from scope_selfplay.store.parquet import ROWS_PER_GROUP, line_blocks, table_from_lines

# Every part is one more file to open; past this many the newest are written again as one.
_MOST_PARTS = 12
# Bytes of lines that are parsed at a time: a server does it between two answers, within its memory.
_BLOCK = 1 << 20


class LivePart(NamedTuple):
    path: Path
    rows: int


class LiveFile:
    """The complete lines of one JSONL file as parquet parts. A torn last line waits until it is complete."""

    def __init__(self, path: Path, model: type[BaseModel], new_part: Callable[[], Path]) -> None:
        """`new_part` gives a path for one more part; later ones hold later records."""
        self.path = path
        self._model = model
        self._new_part = new_part
        self._inode: int | None = None
        self._offset = 0
        self._outdated: list[LivePart] = []
        self._parts: list[LivePart] = []

    @property
    def parts(self) -> list[Path]:
        return [part.path for part in self._parts]

    def refresh(self) -> bool:
        """Convert what was appended; whether anything changed. Raises RecordError with file and line."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            changed = bool(self._parts)
            self._forget()
            return changed
        if found.st_ino != self._inode or found.st_size < self._offset:
            # Written anew as a whole.
            self._forget()
            self._inode = found.st_ino
        elif found.st_size == self._offset:
            return False
        if not self._take_over():
            return False
        if len(self._parts) > _MOST_PARTS:
            self._merge(_first_to_merge([part.rows for part in self._parts]))
        return True

    def _take_over(self) -> bool:
        """Write the new lines as one part, block by block; whether there were any."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            blocks = line_blocks(file, _BLOCK)
            first = next(blocks, b"")
            if first:
                self._add_part(itertools.chain([first], blocks))
        return bool(first)

    def _add_part(self, blocks: Iterable[bytes]) -> None:
        path = self._new_part()
        offset, rows = self._offset, 0
        try:
            with _writer(path, self._model) as writer:
                for block in blocks:
                    table = table_from_lines(block, self._model, self.path)
                    writer.write_table(table, row_group_size=ROWS_PER_GROUP)
                    offset += len(block)
                    rows += table.num_rows
        except RecordError:
            path.unlink()
            raise
        self._parts.append(LivePart(path, rows))
        self._offset = offset

    def _merge(self, first: int) -> None:
        """Write the parts from `first` on as one."""
        kept, small = self._parts[:first], self._parts[first:]
        path = self._new_part()
        with _writer(path, self._model) as writer:
            for part in small:
                with pq.ParquetFile(part.path) as file:
                    for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
                        writer.write_batch(batch)
        self._retire(small)
        self._parts = [*kept, LivePart(path, sum(part.rows for part in small))]

    def _forget(self) -> None:
        self._retire(self._parts)
        self._parts = []
        self._offset = 0
        self._inode = None

    def _retire(self, parts: list[LivePart]) -> None:
        for part in self._outdated:
            part.path.unlink(missing_ok=True)
        # Removed one turn later: another thread's query may be about to open them.
        self._outdated = parts


def _first_to_merge(rows: list[int]) -> int:
    """The first part that is no larger than all after it together: what stays keeps halving, so that it stays few."""
    fits = (place for place in range(len(rows) - 1) if rows[place] <= sum(rows[place + 1 :]))
    return next(fits, len(rows) - 2)


def _writer(path: Path, model: type[BaseModel]) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, arrow_schema(model), compression="zstd")
