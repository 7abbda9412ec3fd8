"""A run's folders, its stages in their order, and the manifest that makes a stage finished.

The same on a laptop and on a shared volume. A stage is finished when its `manifest.json` exists: it is written last,
by exclusive create, with a checksum of every file but hidden ones and itself.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path

from pydantic import BaseModel, Field

from scope_selfplay.base.errors import CheckpointError, RecordError
from scope_selfplay.base.values import Value
from scope_selfplay.store.files import disk_faults, read_value, sync_folder, write_atomic

MANIFEST = "manifest.json"
_READERS = 4

FORMAT = 2
"""The format of stage folders: JSON lines, and the same records as parquet with a card beside them.

A new field with a default is not a new format; anything that this version would misread is. `schemas/format-2.json`
says what the files hold."""


class Stage(StrEnum):
    CHALLENGER = "challenger"
    TASKS = "tasks"
    SOLVER = "solver"
    COMPARE = "compare"

    @property
    def job_name(self) -> str:
        """The command of `python -m jobs` that does it; the stage itself names its folder."""
        return _JOB_NAMES[self]


_JOB_NAMES = {
    Stage.CHALLENGER: "train-challenger",
    Stage.TASKS: "make-tasks",
    Stage.SOLVER: "train-solver",
    Stage.COMPARE: "compare",
}


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
    """The number of the attempt that published it."""
    version: str = ""
    format: int = FORMAT

    @property
    def hash(self) -> str:
        """Names the stage's results; what comes later lists it among its inputs."""
        apart = {"seconds", "attempt", "format"}
        return hashlib.sha256(self.model_dump_json(exclude=apart).encode()).hexdigest()[:16]


class StageFolder:
    """One stage of one iteration: records, metrics, perhaps a checkpoint, and the manifest last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.candidates = path / "candidates.jsonl"
        self.rollouts = path / "rollouts.jsonl"
        self.grades = path / "grades.jsonl"
        self.comparisons = path / "comparisons.jsonl"
        self.selections = path / "selections.jsonl"
        self.scores = path / "scores.jsonl"
        self.rubrics = path / "rubrics.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.ratings = path / "ratings.json"
        self.target = path / "target.json"
        self.checkpoint = path / "checkpoint"
        # Hidden: what a stage needs to go on after a kill; removed once its manifest exists.
        self.work = path / ".work"
        # One line for people, while there is less room on the volume than the stage is expected to need.
        self.room = self.work / "room"

    @property
    def manifest(self) -> StageManifest | None:
        return read_manifest(self.path)


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "run.yaml"
        # Exists until everything that a run starts from is written; until then a start may write it all again.
        self.beginning = path / ".beginning"
        self.prompts = path / "prompts"
        self.corpus = path / "corpus.jsonl"
        # Names the index that the run searches; written when its first search is prepared.
        self.index = path / "index.json"
        # What the Solver's tools said of themselves when they were first opened.
        self.tools = path / "tools.json"
        # Whose iterations a forked run shares.
        self.fork = path / "fork.json"
        # Points at the base model where the settings name it from the folder in which the run began.
        self.base = path / "base"
        # Points at the Solver that the newest comparison kept.
        self.best = path / "best"
        # Questions with known verdicts that the judge was asked; apart from the records, which they never join.
        self.canaries = path / "canaries"
        # What the judge was found to be able to, with the thresholds of its verdicts.
        self.exam = path / "exam"
        # Judgements that were asked again.
        self.audit = path / "audit"
        # What servers compile for a model when they start, for their next start.
        self.caches = path / "cache"
        # Status, logs and lock of the process that drives the run on one machine.
        self.driver = path / "driver"
        # What the pods of a run on a cluster said.
        self.logs = path / "log"
        self.summary = path / "summary.json"
        self.log = path / "run.log"

    def iterations(self) -> list[int]:
        """Those that have begun, in their order."""
        numbers = (path.name.removeprefix("iteration-") for path in self.path.glob("iteration-*"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def given(self, setting: str) -> Path:
        """The questions or tasks of the file that a setting named when the run began."""
        return self.path / f"{setting}.jsonl"

    def stage(self, iteration: int, stage: Stage) -> StageFolder:
        return StageFolder(self.path / f"iteration-{iteration:02d}" / stage.value)


def checksum(path: Path) -> str:
    """The SHA-256 of a file; one that nobody has touched since is not read again by this process."""
    found = path.stat()
    return _checksum(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=4096)
def _checksum(path: Path, *identity: int) -> str:
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
    """Make a stage finished. The first to publish wins; a second one changes nothing."""
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n", exclusive=True)


def begin_format(work: Path) -> None:
    """Note in a stage's work folder which format it is written in.

    Raises RecordError when a version with another format began it: half of a stage is not carried over.
    """
    file = work / "format"
    if not file.exists():
        write_atomic(file, f"{FORMAT}\n")
    elif file.read_text().strip() != str(FORMAT):
        raise RecordError(
            f"{work.parent}: was begun in format {file.read_text().strip()}, this scope writes {FORMAT}; finish it "
            "with the version that began it, or remove the stage folder"
        )


class _AnyManifest(BaseModel):
    """What manifests of all versions say; whatever else they hold is not looked at."""

    format: int = FORMAT


def parse_manifest(folder: Path) -> StageManifest | None:
    """The manifest of a finished stage, or None; its outputs are not looked at. Raises RecordError for damage."""
    path, advice = folder / MANIFEST, "restore it or remove the stage folder"
    told = read_value(path, _AnyManifest, advice)
    if told is not None and told.format != FORMAT:
        raise RecordError(
            f"{path}: has format {told.format}, this version of scope reads format {FORMAT}; use the version that "
            "wrote it"
        )
    return read_value(path, StageManifest, advice)


def read_manifest(folder: Path) -> StageManifest | None:
    """The manifest of a finished stage, or None. Raises RecordError when an output is missing or changed."""
    manifest = parse_manifest(folder)
    if manifest is not None:
        check_outputs(folder, manifest, *manifest.outputs)
    return manifest


def check_outputs(folder: Path, manifest: StageManifest, *names: str) -> None:
    """Raises RecordError when one of these files, which the manifest lists, is missing or changed."""
    found = damage(folder, {name: manifest.outputs[name] for name in names})
    if found is not None:
        raise RecordError(
            f"{folder}: {found} since the stage was finished; restore it or remove the stage folder"
        )


def damage(folder: Path, sums: Mapping[str, str]) -> str | None:
    """The first file that was removed or has another checksum, and which of it; None where all are whole."""
    for name in sums:
        if not (folder / name).is_file():
            return f"{name} was removed"
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda name: checksum(folder / name), sums)
        changed = (name for name, its in zip(sums, found, strict=True) if its != sums[name])
        return next((f"{name} has changed" for name in changed), None)


RECEIPT = "fetched.json"
SUMS = "receipt.json"
_SUMS = ".sums-"


class _Sums(BaseModel):
    files: dict[str, str]


class _Receipt(_Sums):
    model: str
    revision: str


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
    found = damage(folder, receipt.files)
    if found is not None:
        raise CheckpointError(f"{folder}: {found} since it was fetched; remove the folder and run this again")
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
        receipt = read_value(folder / SUMS, _Sums, "")
    except RecordError:
        return f"{SUMS} is unreadable"
    return f"no {SUMS}" if receipt is None else damage(folder, receipt.files)


@dataclass(frozen=True)
class Policy:
    """A model directory and the name that it has in records, such as C_t or S_t."""

    name: str
    path: Path

    @property
    def weights(self) -> str:
        return weights_hash(self.path)

    @property
    def identity(self) -> str:
        return f"{self.name}-{self.weights}"


@cache
def weights_hash(folder: Path) -> str:
    """Names the weights: the first 12 hex digits of a SHA-256 over all safetensors files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            # Goes on with the same digest, a small buffer at a time.
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()[:12]
