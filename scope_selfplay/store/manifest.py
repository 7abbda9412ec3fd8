"""A stage is done when its manifest stands: written last, by exclusive create, with a checksum of every file."""

import hashlib
import os
from pathlib import Path

from pydantic import Field, ValidationError

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Value
from scope_selfplay.store.atomic import disk_faults, part_of, sync_folder, write_atomic

MANIFEST = "manifest.json"

FORMAT = 2
"""The format of stage folders that this version writes. 1: JSON lines only. 2: parquet and a card beside them.

A field with a default is no new format; anything that an older reader would misread is."""


class StageManifest(Value):
    """What a finished stage was made from and what it made; `outputs` are SHA-256 sums by relative path."""

    stage: str
    iteration: int
    spec_hash: str
    inputs: dict[str, str] = Field(default_factory=dict)
    outputs: dict[str, str] = Field(default_factory=dict)
    rows: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    attempt: int = 1
    """Which try published it."""
    version: str = ""
    format: int = 1

    @property
    def hash(self) -> str:
        """Names the stage's results; what comes later lists it among its inputs."""
        apart = {"seconds", "attempt", "format"}
        return hashlib.sha256(self.model_dump_json(exclude=apart).encode()).hexdigest()[:16]


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """The checksum of every file below a folder, but for hidden ones and the manifest itself."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder) for path in files}
    return {
        str(name): checksum(path)
        for path, name in names.items()
        if name != Path(MANIFEST) and not any(part.startswith(".") for part in name.parts)
    }


def publish_manifest(folder: Path, manifest: StageManifest) -> None:
    """Declare a stage done. The first to publish wins; a second one changes nothing."""
    path = folder / MANIFEST
    temporary = part_of(path)
    with disk_faults(path):
        try:
            with temporary.open("w") as file:
                file.write(manifest.model_dump_json(indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)


def begin_format(work: Path) -> None:
    """Note in a stage's work folder which format it is written in.

    Raises RecordError when another version began it: half of a stage is not carried over.
    """
    file = work / "format"
    if not file.exists():
        write_atomic(file, f"{FORMAT}\n")
    elif file.read_text().strip() != str(FORMAT):
        raise RecordError(
            f"{work.parent}: was begun in format {file.read_text().strip()}, this scope writes {FORMAT}; finish it "
            "with the version that began it, or remove the stage folder"
        )


def check_format(path: Path, manifest: StageManifest) -> None:
    """Raises RecordError for a stage that a newer version finished."""
    if manifest.format > FORMAT:
        raise RecordError(
            f"{path}: is of format {manifest.format}, this scope reads up to {FORMAT}; use a newer scope"
        )


def read_manifest(folder: Path) -> StageManifest | None:
    """The manifest of a finished stage, or None. Raises RecordError when an output is missing or changed."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = StageManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RecordError(
            f"{path}: not a manifest ({str(error).splitlines()[0]}); remove the stage folder"
        ) from None
    check_format(path, manifest)
    for name in manifest.outputs:
        check_output(folder, manifest, name)
    return manifest


def check_output(folder: Path, manifest: StageManifest, name: str) -> Path:
    """The path of a file that the manifest lists. Raises RecordError when it is missing or changed."""
    file = folder / name
    if not file.is_file():
        raise RecordError(
            f"{file}: missing, but {folder / MANIFEST} lists it; restore it or remove the stage folder"
        )
    if checksum(file) != manifest.outputs[name]:
        raise RecordError(
            f"{file}: changed since the stage was finished; restore it or remove the stage folder"
        )
    return file
