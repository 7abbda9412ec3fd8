"""Where a stage's records are read from: parquet when the stage is finished, converted JSON lines while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

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

Place = tuple[int, Stage]
"""A stage of an iteration."""
# Room for the parts of one stage, and for the rows of one part.
_PARTS, _ROWS = 1 << 20, 1 << 32
# Bytes of lines that are parsed at a time: a server does it between two answers, within its memory.
BLOCK = 1 << 20


@dataclass
class _StageSource:
    """The files that one stage's records are read from: links to its finished parquet, or its lines."""

    stamp: tuple[int, int] | None = None
    manifest: StageManifest | None = None
    finished: dict[RecordKind, Path] = field(default_factory=dict)
    live: dict[Path, "LiveFile"] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def files(self, kind: RecordKind) -> list[Path]:
        """Parquet files in the order of their records; [] when there are none."""
        if kind in self.finished:
            return [self.finished[kind]]
        return [part for path, live in self.live.items() if path.stem == kind for part in live.rows]


class RecordViews:
    """Views `candidates`, `rollouts` and so on of a run in a database, kept up to date by `refresh`.

    DuckDB reads every parquet file of the run under its iteration and stage:

        <scratch>/place=<n>/iteration=<t>/stage=<stage>/<kind>.parquet

    A finished file is a link to the run's own, a live part is a file. The folder names become columns, so a query
    about one stage opens that stage's files only; `place` keeps the records in the order of the loop. It also keeps
    the run's own path, in which DuckDB would read * and [ as patterns, out of every query.

    A finished stage is checked against its manifest's checksums, once. Where its parquet has other columns than this
    version's (a field was added since), its lines are read.
    """

    def __init__(self, folder: RunFolder, database: duckdb.DuckDBPyConnection, scratch: Path) -> None:
        self._folder, self._database, self._scratch = folder, database, scratch
        self._stages: dict[Place, _StageSource] = {}
        self._files: dict[RecordKind, list[Path]] = {}
        self.define()

    def stages(self) -> dict[Place, StageManifest | None]:
        """Every stage that has begun, in the order of the loop; without a manifest it has not ended."""
        return {place: source.manifest for place, source in self._stages.items()}

    def refresh(self) -> bool:
        """Take in what was written since; whether anything was, and the views are to be defined anew.

        Raises RecordError for damage.
        """
        places = [(number, stage) for number in self._folder.iterations() for stage in Stage]
        begun = [place for place in places if self._folder.stage(*place).path.is_dir()]
        changed = begun != list(self._stages)
        self._stages = {place: self._stages.get(place) or _StageSource() for place in begun}
        for place, source in self._stages.items():
            changed = self._refresh(place, source) or changed
        return changed

    def _refresh(self, place: Place, source: _StageSource) -> bool:
        folder = self._folder.stage(*place).path
        stamp = _stamp(folder / MANIFEST)
        changed = stamp != source.stamp
        if changed:
            source.stamp, source.manifest = stamp, parse_manifest(folder)
            source.finished = self._links(place, source.manifest) if source.manifest else {}
        # While workers share the stage, their folders hold records too.
        shares = sorted((folder / ".work" / "shares").glob("*-of-*-*/"))
        for kind in RecordKind:
            if kind not in source.finished:
                for file in (each / f"{kind}.jsonl" for each in (folder, *shares)):
                    if file not in source.live:
                        new_part = partial(self._new_part, place, kind, source.numbers)
                        source.live[file] = LiveFile(file, kind, new_part)
                    changed = source.live[file].refresh() or changed
        return changed

    def _links(self, place: Place, manifest: StageManifest) -> dict[RecordKind, Path]:
        found, folder = dict[RecordKind, Path](), self._folder.stage(*place).path
        for kind in RecordKind:
            path = folder / f"{kind}.parquet"
            if path.name in manifest.outputs:
                check_outputs(folder, manifest, path.name)
                if has_columns_of(path, kind):
                    found[kind] = self._path(place, kind)
                    found[kind].unlink(missing_ok=True)
                    found[kind].symlink_to(path.resolve())
                else:
                    check_outputs(folder, manifest, f"{kind}.jsonl")
        return found

    def _new_part(self, place: Place, kind: RecordKind, numbers: Iterator[int]) -> Path:
        return self._path(place, kind, next(numbers))

    def _path(self, place: Place, kind: RecordKind, part: int = 0) -> Path:
        order = (place[0] * len(Stage) + list(Stage).index(place[1])) * _PARTS + part
        folder = self._scratch / f"place={order}" / f"iteration={place[0]}" / f"stage={place[1]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{kind}.parquet"

    def define(self) -> set[RecordKind]:
        """Make the views of what has other files now, with the columns `iteration`, `stage` and `ordinal`; which."""
        changed = set()
        types = "{'place': BIGINT, 'iteration': INTEGER, 'stage': VARCHAR}"
        for kind in RecordKind:
            files = [file for source in self._stages.values() for file in source.files(kind)]
            if self._files.get(kind) != files:
                paths = ", ".join(f"'{file}'" for file in files or [self._without_records(kind)])
                self._database.execute(
                    f"CREATE OR REPLACE VIEW {kind} AS "
                    f"SELECT place * {_ROWS} + file_row_number AS ordinal, * EXCLUDE (place, file_row_number) "
                    f"FROM read_parquet([{paths}], file_row_number = true, hive_partitioning = true, "
                    f"hive_types = {types})"
                )
                self._files[kind] = files
                changed.add(kind)
        return changed

    def _without_records(self, kind: RecordKind) -> Path:
        path = self._path((-1, Stage.CHALLENGER), kind)
        # A writer that writes nothing: arrow's empty tables import pandas, which is 50 MB and half a second.
        with pq.ParquetWriter(path, arrow_schema(kind.model)):
            return path


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class LiveFile:
    """The complete lines of one JSONL file as parquet parts, each with more rows than all after it: so they are few.

    A line is parsed once. Small parts are written again as one, from their columns, so that keeping up costs a
    logarithm of what there is, and no more memory than a block of lines.
    """

    def __init__(self, path: Path, kind: RecordKind, new_part: Callable[[], Path]) -> None:
        """`new_part` gives a path for one more part; later ones hold later records."""
        self._lines, self._kind, self._new_part = NewLines(path), kind, new_part
        self._outdated: list[Path] = []
        self.rows: dict[Path, int] = {}

    def refresh(self) -> bool:
        """Convert what was appended; whether anything changed. Raises RecordError with file and line."""
        is_anew = self._lines.begin_anew()
        if is_anew:
            self._replace(list(self.rows), {})
        begin, blocks = self._lines.offset, self._lines.blocks(BLOCK)
        tables = (table_from_lines(block, self._kind.model, self._lines.path) for block in blocks)
        try:
            found = self._write(chain.from_iterable(table.to_batches() for table in tables))
        except RecordError:
            # Nothing of it was kept.
            self._lines.offset = begin
            raise
        self.rows |= found
        small = list[Path]()
        for part in reversed(self.rows):
            if small and self.rows[part] > sum(self.rows[each] for each in small):
                break
            small.insert(0, part)
        if found and len(small) > 1:
            self._replace(small, self._write(batch for part in small for batch in _batches(part)))
        return bool(found) or is_anew

    def _write(self, batches: Iterator[pa.RecordBatch]) -> dict[Path, int]:
        """One part of all that there is, and its rows; nothing where there is nothing."""
        first = next(batches, None)
        if first is None:
            return {}
        path, rows = self._new_part(), 0
        with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch, row_group_size=ROWS_PER_GROUP)
                rows += batch.num_rows
        return {path: rows}

    def _replace(self, parts: list[Path], others: dict[Path, int]) -> None:
        for part in self._outdated:
            part.unlink(missing_ok=True)
        # Removed the next time: another thread's query may be about to open them.
        self._outdated = parts
        self.rows = {part: rows for part, rows in self.rows.items() if part not in parts} | others


def _batches(part: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(part) as file:
        yield from file.iter_batches(batch_size=ROWS_PER_GROUP)
