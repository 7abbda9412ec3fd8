"""Checkpoints that a killed training goes on from: whole or absent, never partial, and checked before use.

One is written into a hidden folder, gets a receipt with a checksum of every file, and is renamed to
`checkpoint-<step>` when everything is on disk. Each process reads what it has written itself for the receipt. A damaged
one stays where it is for a person to look at.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scope_selfplay.store import write_atomic
from scope_selfplay.store.files import disk_faults, sync_folder
from scope_selfplay.store.folders import checksum

RECEIPT = "receipt.json"
SHARDS = "shards"
"""The folder of the processes' parts, `__<rank>_<number>.distcp` each."""
_PART = ".sums-"
_READERS = 4
_PREFIX = "checkpoint-"


class Checkpoints:
    """The checkpoints of one stage in its work folder; the newest `keep` that are whole stay."""

    def __init__(self, work: Path, keep: int = 2) -> None:
        self._work = work
        self._keep = keep
        self.staging = work / ".staging"
        self._whole: set[str] = set()

    def clear(self) -> None:
        """Remove what a killed save or removal left behind."""
        for path in (self.staging, self._work / ".removing"):
            shutil.rmtree(path, ignore_errors=True)

    def sign(self, step: int, rank: int) -> None:
        """Flush and sum the files that this process wrote, for the receipt. Raises StorageError."""
        staged = self.staging / f"{_PREFIX}{step}"
        with disk_faults(staged):
            own = [*(staged / SHARDS).glob(f"__{rank}_*"), *staged.glob(f"rng_state_{rank}.*")]
            write_atomic(staged / f"{_PART}{rank}", json.dumps(_sums(staged, own)))

    def publish(self, step: int) -> Path:
        """Make the staged checkpoint of a step, signed by all, the newest. Raises StorageError."""
        staged, final = self.staging / f"{_PREFIX}{step}", self._work / f"{_PREFIX}{step}"
        with disk_faults(staged):
            write_receipt(staged)
            if final.exists():
                final.rename(_aside(final))
            staged.rename(final)
            sync_folder(self._work)
            self._whole.add(final.name)
            self._rotate(step)
        return final

    def newest(self, say: Callable[[str], None]) -> Path | None:
        """The newest checkpoint that is whole; every damaged one on the way is reported, none is removed."""
        for path in reversed(self._all()):
            damage = damage_of(path)
            if damage is None and not (path / SHARDS).is_dir():
                damage = f"no {SHARDS}: another version of scope wrote it"
            if damage is None:
                self._whole.add(path.name)
                return path
            say(f"{path}: damaged checkpoint ({damage}); going back to the one before, nothing is removed")
        return None

    def _all(self) -> Sequence[Path]:
        return [self._work / f"{_PREFIX}{step}" for step in saved_steps(self._work)]

    def _rotate(self, step: int) -> None:
        """Keep the one of `step` and the newest whole ones below it; damaged ones count for nothing and stay."""
        # Those above were passed over when training went on from below.
        below = [path for path in self._all() if step_of(path) < step and self._is_whole(path)]
        for path in below[: max(0, len(below) + 1 - self._keep)]:
            # Renamed first: what is half removed must not look like a damaged checkpoint.
            path.rename(self._work / ".removing")
            shutil.rmtree(self._work / ".removing")

    def _is_whole(self, path: Path) -> bool:
        """Reads a checkpoint once in the life of this object: checksums of large ones take minutes."""
        if path.name not in self._whole and damage_of(path) is None:
            self._whole.add(path.name)
        return path.name in self._whole


def saved_steps(work: Path) -> list[int]:
    """The steps of which a stage's work folder has a checkpoint, whole or not, in order."""
    names = (path.name.removeprefix(_PREFIX) for path in work.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdigit())


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def write_receipt(folder: Path) -> None:
    """Flush every file below a folder and list their checksums beside them; sums that were taken before are kept."""
    sums: dict[str, str] = {}
    for part in folder.glob(f"{_PART}*"):
        sums |= json.loads(part.read_bytes())
        part.unlink()
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        sync_folder(inner)
    files = (path for path in folder.rglob("*") if path.is_file())
    sums |= _sums(folder, (path for path in files if str(path.relative_to(folder)) not in sums))
    write_atomic(folder / RECEIPT, json.dumps({"files": dict(sorted(sums.items()))}, indent=1) + "\n")


def _sums(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """The checksums of files, by their names in the folder; each is on disk then."""

    def flushed_sum(file: Path) -> str:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return checksum(file)

    names = sorted(files)
    with ThreadPoolExecutor(_READERS) as readers:
        sums = readers.map(flushed_sum, names)
        return {str(file.relative_to(folder)): found for file, found in zip(names, sums, strict=True)}


def damage_of(folder: Path) -> str | None:
    """What is wrong with a folder that has a receipt, in a few words; None when it is whole."""
    try:
        sums = json.loads((folder / RECEIPT).read_bytes())["files"]
    except FileNotFoundError:
        return f"no {RECEIPT}"
    except (ValueError, KeyError, TypeError):
        return f"{RECEIPT} is unreadable"
    for name in sums:
        if not (folder / name).is_file():
            return f"{name} is missing"
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda name: checksum(folder / name), sums)
        changed = (name for name, its in zip(sums, found, strict=True) if its != sums[name])
        return next((f"{name} has changed" for name in changed), None)


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
