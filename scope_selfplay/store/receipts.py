"""Models that were fetched: a receipt in the folder says which one it is, with the checksum of every file."""

import json
import shutil
from pathlib import Path

from scope_selfplay.errors import CheckpointError
from scope_selfplay.store.files import disk_faults, sync_folder, write_atomic
from scope_selfplay.store.folders import checksums

RECEIPT = "fetched.json"


def is_whole(folder: Path, model: str, revision: str) -> bool:
    """Whether this model was fetched here.

    Raises CheckpointError for another model's folder or somebody's own, and where a file is missing or changed.
    """
    if not (folder / RECEIPT).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise CheckpointError(
                f"{folder}: holds files and was not fetched here; give another folder, or remove this one"
            )
        return False
    receipt = json.loads((folder / RECEIPT).read_bytes())
    if (receipt["model"], receipt["revision"]) != (model, revision):
        raise CheckpointError(
            f"{folder}: holds {receipt['model']} at {receipt['revision']}, asked was {model} at {revision}; give "
            "another folder, or remove this one"
        )
    found = checksums(folder)
    found.pop(RECEIPT, None)
    changed = sorted(name for name, expected in receipt["files"].items() if found.get(name) != expected)
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
