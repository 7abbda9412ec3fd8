"""Folders of weights with a receipt, the checksum of every file: models that were fetched, checkpoints in training."""

import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel

from scope_selfplay.errors import CheckpointError
from scope_selfplay.store.files import disk_faults, read_value, sync_folder, write_atomic
from scope_selfplay.store.folders import checksum, checksums

RECEIPT = "fetched.json"
SUMS = "receipt.json"
_SUMS = ".sums-"
_READERS = 4


class _Receipt(BaseModel):
    model: str
    revision: str
    files: dict[str, str]


def is_whole(folder: Path, model: str, revision: str) -> bool:
    """Whether this model was fetched here.

    Raises CheckpointError for another model's folder or somebody's own, and where a file is missing or changed.
    """
    receipt = read_value(folder / RECEIPT, _Receipt, "remove the folder and run this again")
    if receipt is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise CheckpointError(
                f"{folder}: holds files and was not fetched here; give another folder, or remove this one"
            )
        return False
    if (receipt.model, receipt.revision) != (model, revision):
        raise CheckpointError(
            f"{folder}: holds {receipt.model} at {receipt.revision}, asked was {model} at {revision}; give "
            "another folder, or remove this one"
        )
    found = checksums(folder)
    found.pop(RECEIPT, None)
    changed = sorted(name for name, expected in receipt.files.items() if found.get(name) != expected)
    if changed:
        raise CheckpointError(
            f"{folder / changed[0]}: missing or changed since it was fetched; remove {folder} and run this again"
        )
    return True


def publish_model(part: Path, folder: Path, *, model: str, revision: str, **origin: str) -> None:
    """Give a whole model in `part` its receipt and its name: the folder appears with everything in it."""
    receipt = {"model": model, "revision": revision, **origin, "files": checksums(part)}
    write_atomic(part / RECEIPT, json.dumps(receipt, indent=1) + "\n")
    with disk_faults(folder):
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
        sync_folder(folder.parent)


def sign(folder: Path, part: int, files: Iterable[Path]) -> None:
    """Flush and sum the files that one process has written, for the folder's receipt."""
    write_atomic(folder / f"{_SUMS}{part}", json.dumps(_sums(folder, files)))


def write_receipt(folder: Path) -> None:
    """Flush every file below a folder and list their checksums beside them; sums that were taken before are kept."""
    sums: dict[str, str] = {}
    for part in folder.glob(f"{_SUMS}*"):
        sums |= read_value(part, dict[str, str], "remove the folder") or {}
        part.unlink()
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        sync_folder(inner)
    files = (path for path in folder.rglob("*") if path.is_file())
    sums |= _sums(folder, (path for path in files if str(path.relative_to(folder)) not in sums))
    write_atomic(folder / SUMS, json.dumps({"files": dict(sorted(sums.items()))}, indent=1) + "\n")


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
        sums = json.loads((folder / SUMS).read_bytes())["files"]
    except FileNotFoundError:
        return f"no {SUMS}"
    except (ValueError, KeyError, TypeError):
        return f"{SUMS} is unreadable"
    for name in sums:
        if not (folder / name).is_file():
            return f"{name} is missing"
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda name: checksum(folder / name), sums)
        changed = (name for name, its in zip(sums, found, strict=True) if its != sums[name])
        return next((f"{name} has changed" for name in changed), None)
