"""Where a stage's records are read from: parquet when the stage is finished, a table of its lines while it runs."""

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import duckdb
import pyarrow as pa

from scope_selfplay.store.columns import RecordKind, arrow_schema, has_columns_of, table_from_lines
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
_ROWS = 1 << 40
"""Room for the rows of one stage."""
# Bytes of lines that are parsed at a time: a server does it between two answers, within its memory.
BLOCK = 1 << 20


@dataclass
class _StageSource:
    """What one stage's records are read from: links to its finished parquet, or tables of its lines."""

    stamp: tuple[int, int] | None = None
    manifest: StageManifest | None = None
    finished: dict[RecordKind, Path] = field(default_factory=dict)
    live: dict[Path, NewLines] = field(default_factory=dict)
    taken: dict[RecordKind, int] = field(default_factory=dict)
    """How often the table of a kind has changed."""


class RecordViews:
    """Views `candidates`, `rollouts` and so on of a run in a database, kept up to date by `refresh`.

    DuckDB reads every finished parquet file of the run, by a link to it, under its iteration and stage:

        <scratch>/place=<n>/iteration=<t>/stage=<stage>/<kind>.parquet

    The folder names become columns, so a query about one stage opens that stage's files only; `place` keeps the records
    in the order of the loop. It also keeps the run's own path, in which DuckDB would read * and [ as patterns, out of
    every query. Lines of a stage that runs are rows of a table, which is a file in the scratch folder, too; a line is
    parsed once.

    A finished stage is checked against its manifest's checksums, once. Where its parquet has other columns than this
    version's (a field was added since), its lines are read.
    """

    def __init__(self, folder: RunFolder, database: duckdb.DuckDBPyConnection, scratch: Path) -> None:
        self._folder, self._database, self._scratch = folder, database, scratch
        self._stages: dict[Place, _StageSource] = {}
        self._parts: dict[RecordKind, list[tuple[Place, Path | int]]] = {}
        self._database.execute(f"ATTACH '{scratch / 'records.duckdb'}' AS scratch")
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
                    if self._take(_table(place, kind), kind, source.live.setdefault(file, NewLines(file))):
                        source.taken[kind] = source.taken.get(kind, 0) + 1
                        changed = True
        return changed

    def _take(self, table: str, kind: RecordKind, lines: NewLines) -> bool:
        """Take in what a file got; whether anything changed. Raises RecordError with file and line."""
        is_anew, changed = lines.begin_anew(), False
        if is_anew:
            self._database.execute(f"DELETE FROM {table} WHERE file = ?", [str(lines.path)])
        for block in lines.blocks(BLOCK):
            rows = table_from_lines(block, kind.model, lines.path)
            if not changed:
                self._make(table, kind)
            self._database.register("block", rows)
            self._database.execute(f"INSERT INTO {table} SELECT *, ? FROM block", [str(lines.path)])
            changed = True
        return is_anew or changed

    def _make(self, table: str, kind: RecordKind) -> None:
        """An empty table for records of a kind, unless it is there."""
        # A reader of no batches: arrow's empty tables import pandas, which is 50 MB and half a second.
        self._database.register("block", pa.RecordBatchReader.from_batches(arrow_schema(kind.model), []))
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT *, '' AS file FROM block")

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

    def _path(self, place: Place, kind: RecordKind) -> Path:
        folder = self._scratch / f"place={_order(place)}" / f"iteration={place[0]}" / f"stage={place[1]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{kind}.parquet"

    def define(self) -> set[RecordKind]:
        """Make the views of what has other records now, with the columns `iteration`, `stage` and `ordinal`; which."""
        changed = set()
        for kind in RecordKind:
            parts = [
                (place, found)
                for place, source in self._stages.items()
                if (found := source.finished.get(kind) or source.taken.get(kind))
            ]
            if self._parts.get(kind) != parts:
                self._parts[kind] = parts
                self._database.execute(f"CREATE OR REPLACE VIEW {kind} AS {self._selected(kind)}")
                changed.add(kind)
        return changed

    def _selected(self, kind: RecordKind) -> str:
        """The query for all records of a kind, in the order of the loop."""
        types, parts = "{'place': BIGINT, 'iteration': INTEGER, 'stage': VARCHAR}", list[str]()
        for is_live, group in groupby(self._parts[kind], lambda part: isinstance(part[1], int)):
            places, found = zip(*group, strict=True)
            paths = ", ".join(f"'{file}'" for file in found)
            parts += (
                [_rows(_table(place, kind), place) for place in places]
                if is_live
                else [
                    f"SELECT place * {_ROWS} + file_row_number AS ordinal, * EXCLUDE (place, file_row_number) "
                    f"FROM read_parquet([{paths}], file_row_number = true, hive_partitioning = true, "
                    f"hive_types = {types})"
                ]
            )
        if not parts:
            self._make(f"no_{kind}", kind)
        return " UNION ALL BY NAME ".join(parts or [_rows(f"no_{kind}", (0, Stage.CHALLENGER))])


def _order(place: Place) -> int:
    return place[0] * len(Stage) + list(Stage).index(place[1])


def _table(place: Place, kind: RecordKind) -> str:
    return f"scratch.{kind}_{_order(place)}"


def _rows(table: str, place: Place) -> str:
    number, stage = place
    return (
        f"SELECT {_order(place)} * {_ROWS} + rowid AS ordinal, {number} AS iteration, '{stage}' AS stage, "
        f"* EXCLUDE (file) FROM {table}"
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
