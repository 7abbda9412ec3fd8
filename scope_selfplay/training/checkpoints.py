"""Checkpoints that a killed training goes on from: whole or absent, never partial, and checked before use.

One is written into a hidden folder, gets a receipt with a checksum of every file, and is renamed to
`checkpoint-<step>` when everything is on disk. A damaged one stays where it is for a person to look at.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from scope_selfplay.store import write_atomic
from scope_selfplay.store.files import disk_faults, sync_folder
from scope_selfplay.store.folders import checksum

RECEIPT = "receipt.json"
_KEPT = 2
_PREFIX = "checkpoint-"


class Checkpoints:
    """The checkpoints of one stage in its work folder; the newest two that are whole are kept."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self.staging = work / ".staging"
        self._whole: set[str] = set()

    def clear(self) -> None:
        """Remove what a killed save or removal left behind."""
        for path in (self.staging, self._work / ".removing"):
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, step: int) -> Path:
        """Make the staged checkpoint of a step the newest. Raises StorageError."""
        staged, final = self.staging / f"{_PREFIX}{step}", self._work / f"{_PREFIX}{step}"
        with disk_faults(staged):
            # The trainer's arguments are pickled and nothing reads them.
            (staged / "training_args.bin").unlink(missing_ok=True)
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
            if damage is None:
                return path
            say(f"{path}: damaged checkpoint ({damage}); going back to the one before, nothing is removed")
        return None

    def _all(self) -> Sequence[Path]:
        found = [path for path in self._work.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
        return sorted(found, key=step_of)

    def _rotate(self, step: int) -> None:
        """Keep the one of `step` and the newest whole one below it; damaged ones count for nothing and stay."""
        # Those above were passed over when training went on from below.
        below = [path for path in self._all() if step_of(path) < step and self._is_whole(path)]
        for path in below[: 1 - _KEPT]:
            # Renamed first: what is half removed must not look like a damaged checkpoint.
            path.rename(self._work / ".removing")
            shutil.rmtree(self._work / ".removing")

    def _is_whole(self, path: Path) -> bool:
        """Reads a checkpoint once in the life of this object: checksums of large ones take minutes."""
        if path.name not in self._whole and damage_of(path) is None:
            self._whole.add(path.name)
        return path.name in self._whole


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def write_receipt(folder: Path) -> None:
    """Flush every file below a folder and list their checksums beside them."""
    sums = {}
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        sync_folder(inner)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sums[str(file.relative_to(folder))] = checksum(file)
    write_atomic(folder / RECEIPT, json.dumps({"files": sums}, indent=1) + "\n")


def damage_of(folder: Path) -> str | None:
    """What is wrong with a folder that has a receipt, in a few words; None when it is whole."""
    try:
        sums = json.loads((folder / RECEIPT).read_bytes())["files"]
    except FileNotFoundError:
        return f"no {RECEIPT}"
    except (ValueError, KeyError, TypeError):
        return f"{RECEIPT} is unreadable"
    for name, expected in sums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if checksum(folder / name) != expected:
            return f"{name} has changed"
    return None


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
