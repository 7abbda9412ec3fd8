"""Copies of a run's older parquet files in today's columns, so that all of a kind load together.

`datasets` joins the files of one config only where their columns are the same. A finished stage is never written
again: its checksums stand in its manifest, and later stages were made from exactly these. So the copies lie apart,
in `migrated/` of the run, under the same names, and the run's card lists them in place of the older files. They may
be removed; the next card makes them again.
"""

from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folders import MANIFEST, RunFolder
from scope_selfplay.store.parquet import is_current, rewrite

MIGRATED = "migrated"


def finished_files(folder: RunFolder) -> Iterator[tuple[Path, RecordKind]]:
    """The parquet files of all finished stages, in the order of iterations."""
    for manifest in sorted(folder.path.glob(f"iteration-*/*/{MANIFEST}")):
        for kind in RecordKind:
            file = manifest.with_name(f"{kind}.parquet")
            if file.exists():
                yield file, kind


def migrate(folder: RunFolder) -> None:
    """Copy what has the columns of another version. Raises RecordError for a file that cannot be read as this one's."""
    for file, kind in finished_files(folder):
        if is_current(file, kind):
            continue
        copy = _copy_of(folder, file)
        made = copy.exists() and copy.stat().st_mtime_ns >= file.stat().st_mtime_ns
        if not made or not is_current(copy, kind):
            copy.parent.mkdir(parents=True, exist_ok=True)
            rewrite(file, copy, kind)


def loadable(folder: RunFolder, file: Path, kind: RecordKind) -> Path:
    """Where the records of a finished file stand in today's columns, once `migrate` was called."""
    return file if is_current(file, kind) else _copy_of(folder, file)


def _copy_of(folder: RunFolder, file: Path) -> Path:
    return folder.path / MIGRATED / file.relative_to(folder.path)
