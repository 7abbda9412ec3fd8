"""Where a stage's records are read from: parquet when the stage is finished, converted JSON lines while it runs."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.base.errors import RecordError
from scope_selfplay.store.columns import (
    ROWS_PER_GROUP,
    RecordKind,
    arrow_schema,
    has_columns_of,
    table_from_lines,
)
from scope_selfplay.store.files import NewLines
from scope_selfplay.store.folder import (
    MANIFEST,
    RunFolder,
    Stage,
    StageManifest,
    check_outputs,
    parse_manifest,
)
from scope_selfplay.store.query import StageState

# Room for the parts of one stage, and for the rows of one part.
_PARTS, _ROWS = 1 << 20, 1 << 32
# Every part is one more file to open; past this many the newest are written again as one.
_MOST_PARTS = 12
# Bytes of lines that are parsed at a time: a server does it between two answers, within its memory.
BLOCK = 1 << 20


def find_stages(folder: RunFolder) -> list[tuple[int, Stage]]:
    """The stages that have begun, as (iteration, stage)."""
    found: list[tuple[int, Stage]] = []
    for path in sorted(folder.path.glob("iteration-*")):
        number = path.name.removeprefix("iteration-")
        if number.isdecimal():
            found += [(int(number), stage) for stage in Stage if (path / stage.value).is_dir()]
    return found


class ReaderFolder:
    """The folder that DuckDB sees: every parquet file of a run under its iteration and stage.

        <scratch>/place=<n>/iteration=<t>/stage=<stage>/<kind>.parquet

    A finished file is a link to the run's own, a live part is a file. The folder names become columns, so a query
    about one stage opens that stage's files only; `place` keeps the records in the order of the loop. It also keeps
    the run's own path, in which DuckDB would read * and [ as patterns, out of every query.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        for kind in RecordKind:
            # What a view looks like before there is any record.
            # A writer that writes nothing: arrow's empty tables import pandas, which is 50 MB and half a second.
            with pq.ParquetWriter(self._path(0, -1, "none", kind), arrow_schema(kind.model)):
                pass

    def place(self, iteration: int, stage: Stage, kind: RecordKind, part: int = 0) -> Path:
        """The path for a file; its folder is made."""
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


class StageSource:
    """The files that one stage's records are read from, kept up to date by `refresh`.

    A finished stage is checked against its manifest's checksums, once. Where its parquet has other columns than this
    version's (a field was added since), its lines are read.
    """

    def __init__(self, iteration: int, stage: Stage, folder: RunFolder, reader_folder: ReaderFolder) -> None:
        self.iteration = iteration
        self.stage = stage
        self._path = folder.stage(iteration, stage).path
        self._reader_folder = reader_folder
        self._live: dict[Path, LiveFile] = {}
        self._numbers = itertools.count()
        self._finished: dict[RecordKind, Path] = {}
        self._manifest: StageManifest | None = None
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Take in what was written since; whether anything was. Raises RecordError for damage."""
        stamp = _stamp(self._path / MANIFEST)
        changed = stamp != self._seen
        if changed:
            self._seen = stamp
            self._manifest = parse_manifest(self._path)
            self._finished = self._link_parquet(self._manifest) if self._manifest else {}
        # While workers share the stage, their folders hold records too.
        shares = sorted((self._path / ".work" / "shares").glob("*-of-*-*/"))
        for kind in RecordKind:
            if kind not in self._finished:
                for folder in (self._path, *shares):
                    changed = self._live_file(kind, folder / f"{kind}.jsonl").refresh() or changed
        return changed

    def files(self, kind: RecordKind) -> list[Path]:
        """Parquet files in the order of their records; [] when there are none."""
        if kind in self._finished:
            return [self._finished[kind]]
        name = f"{kind}.jsonl"
        return [part for path, live in self._live.items() if path.name == name for part in live.parts]

    def state(self) -> StageState:
        files = {kind.value: paths for kind in RecordKind if (paths := self.files(kind))}
        rows = {kind: sum(pq.read_metadata(path).num_rows for path in paths) for kind, paths in files.items()}
        return StageState(iteration=self.iteration, stage=self.stage, manifest=self._manifest, rows=rows)

    def _live_file(self, kind: RecordKind, path: Path) -> "LiveFile":
        if path not in self._live:

            def new_part() -> Path:
                return self._reader_folder.place(self.iteration, self.stage, kind, next(self._numbers))

            self._live[path] = LiveFile(path, kind.model, new_part)
        return self._live[path]

    def _link_parquet(self, manifest: StageManifest) -> dict[RecordKind, Path]:
        found: dict[RecordKind, Path] = {}
        for kind in RecordKind:
            if f"{kind}.parquet" not in manifest.outputs:
                continue
            path = self._path / f"{kind}.parquet"
            check_outputs(self._path, manifest, path.name)
            if has_columns_of(path, kind):
                link = self._reader_folder.place(self.iteration, self.stage, kind)
                link.unlink(missing_ok=True)
                link.symlink_to(path.resolve())
                found[kind] = link
            else:
                check_outputs(self._path, manifest, f"{kind}.jsonl")
        return found


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class LiveFile:
    """The complete lines of one JSONL file as parquet parts.

    A line is parsed once. Where small parts become many they are written again as one, from their columns, so that
    keeping up costs a logarithm of what there is, and no more memory than a block of lines.
    """

    def __init__(self, path: Path, model: type[BaseModel], new_part: Callable[[], Path]) -> None:
        """`new_part` gives a path for one more part; later ones hold later records."""
        self._lines = NewLines(path)
        self._model = model
        self._new_part = new_part
        self._outdated: list[Path] = []
        self._rows: dict[Path, int] = {}

    @property
    def parts(self) -> list[Path]:
        return list(self._rows)

    def refresh(self) -> bool:
        """Convert what was appended; whether anything changed. Raises RecordError with file and line."""
        is_anew = self._lines.begin_anew()
        if is_anew:
            self._replace(self.parts, {})
        tables = (
            table_from_lines(block, self._model, self._lines.path) for block in self._lines.blocks(BLOCK)
        )
        begin = self._lines.offset
        try:
            found = self._write(itertools.chain.from_iterable(table.to_batches() for table in tables))
        except RecordError:
            # Nothing of it was kept.
            self._lines.offset = begin
            raise
        self._rows |= found
        if len(self._rows) > _MOST_PARTS:
            small = self.parts[_first_to_merge(list(self._rows.values())) :]
            files = (batch for part in small for batch in _batches(part))
            self._replace(small, self._write(files))
        return bool(found) or is_anew

    def _write(self, batches: Iterator[pa.RecordBatch]) -> dict[Path, int]:
        """One part of all that there is, and its rows; nothing where there is nothing."""
        first = next(batches, None)
        if first is None:
            return {}
        path, rows = self._new_part(), 0
        try:
            with pq.ParquetWriter(path, arrow_schema(self._model), compression="zstd") as writer:
                for batch in itertools.chain([first], batches):
                    writer.write_batch(batch, row_group_size=ROWS_PER_GROUP)
                    rows += batch.num_rows
        except RecordError:
            path.unlink()
            raise
        return {path: rows}

    def _replace(self, parts: list[Path], others: dict[Path, int]) -> None:
        for part in self._outdated:
            part.unlink(missing_ok=True)
        # Removed the next time: another thread's query may be about to open them.
        self._outdated = parts
        self._rows = {part: rows for part, rows in self._rows.items() if part not in parts} | others


def _batches(part: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(part) as file:
        yield from file.iter_batches(batch_size=ROWS_PER_GROUP)


def _first_to_merge(rows: list[int]) -> int:
    """The first part that is no larger than all after it together: sizes keep halving, so that parts remain few."""
    fits = (place for place in range(len(rows) - 1) if rows[place] <= sum(rows[place + 1 :]))
    return next(fits, len(rows) - 2)
