"""Where a stage's records are read from: parquet when the stage is done, converted JSON lines while it runs."""

import itertools
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import ValidationError

from scope_selfplay.errors import RecordError
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folders import MANIFEST, RunFolder, Stage, StageManifest, check_format, check_output
from scope_selfplay.store.parquet import is_current, rewrite
from scope_selfplay.store.query import StageState
from scope_selfplay.store.sources import LiveFile, ReaderFolder


def find_stages(folder: RunFolder) -> list[tuple[int, Stage]]:
    """The stages that have begun, as (iteration, stage)."""
    found: list[tuple[int, Stage]] = []
    for path in sorted(folder.path.glob("iteration-*")):
        number = path.name.removeprefix("iteration-")
        if number.isdecimal():
            found += [(int(number), stage) for stage in Stage if (path / stage.value).is_dir()]
    return found


class StageSource:
    """The files that one stage's records are read from, kept up to date by `refresh`.

    A finished stage is checked against its manifest's checksums, once. Parquet with the columns of another version
    is written again, in today's, to the scratch folder; a stage of a format without parquet is read from its lines.
    """

    def __init__(self, iteration: int, stage: Stage, folder: RunFolder, layout: ReaderFolder) -> None:
        self.iteration = iteration
        self.stage = stage
        self._path = folder.stage(iteration, stage).path
        self._layout = layout
        self._live: dict[Path, LiveFile] = {}
        self._numbers = itertools.count()
        self._finished: dict[RecordKind, Path] = {}
        self._manifest: StageManifest | None = None
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> bool:
        stamp = _stamp(self._path / MANIFEST)
        changed = stamp != self._seen
        if changed:
            self._seen = stamp
            self._manifest = _manifest_of(self._path) if stamp else None
            self._finished = self._checked(self._manifest) if self._manifest else {}
        for kind in RecordKind:
            if kind not in self._finished:
                for folder in self._folders():
                    changed = self._lines_of(kind, folder).refresh() or changed
        return changed

    def files(self, kind: RecordKind) -> list[Path]:
        """Parquet files in the order of their records; [] when there are none."""
        if kind in self._finished:
            return [self._finished[kind]]
        name = f"{kind}.jsonl"
        return [part for path, live in self._live.items() if path.name == name for part in live.parts]

    def state(self) -> StageState:
        rows = {
            kind.value: sum(pq.read_metadata(file).num_rows for file in self.files(kind))
            for kind in RecordKind
        }
        return StageState(
            iteration=self.iteration,
            stage=self.stage,
            manifest=self._manifest,
            rows={kind: count for kind, count in rows.items() if self.files(RecordKind(kind))},
        )

    def _folders(self) -> list[Path]:
        """The stage's own folder; while workers share it, those of the workers too."""
        return [self._path, *sorted((self._path / ".work" / "shares").glob("*-of-*-*/"))]

    def _lines_of(self, kind: RecordKind, folder: Path) -> LiveFile:
        path = folder / f"{kind}.jsonl"
        if path not in self._live:
            self._live[path] = LiveFile(path, kind.model, partial(self._new_part, kind))
        return self._live[path]

    def _new_part(self, kind: RecordKind) -> Path:
        return self._layout.place(self.iteration, self.stage, kind, next(self._numbers))

    def _checked(self, manifest: StageManifest) -> dict[RecordKind, Path]:
        found: dict[RecordKind, Path] = {}
        for kind in RecordKind:
            if f"{kind}.parquet" in manifest.outputs:
                found[kind] = self._taken(kind, check_output(self._path, manifest, f"{kind}.parquet"))
            elif f"{kind}.jsonl" in manifest.outputs:
                check_output(self._path, manifest, f"{kind}.jsonl")
        return found

    def _taken(self, kind: RecordKind, path: Path) -> Path:
        place = self._layout.place(self.iteration, self.stage, kind)
        place.unlink(missing_ok=True)
        if is_current(path, kind):
            place.symlink_to(path.resolve())
        else:
            rewrite(path, place, kind)
        return place


def _manifest_of(path: Path) -> StageManifest:
    file = path / MANIFEST
    try:
        manifest = StageManifest.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise RecordError(f"{file}: not a manifest ({str(error).splitlines()[0]}); restore it") from None
    check_format(file, manifest)
    return manifest


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
