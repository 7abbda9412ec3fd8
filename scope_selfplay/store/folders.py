"""A run's folders, its stages in their order, and the manifest that makes a stage finished.

The same on a laptop and on a shared volume. A stage is finished when its `manifest.json` exists: it is written last,
by exclusive create, with a checksum of every file.
"""

import hashlib
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Value
from scope_selfplay.store.files import read_value, write_atomic

MANIFEST = "manifest.json"

FORMAT = 2
"""The format of stage folders: JSON lines, and the same records as parquet with a card beside them.

A new field with a default is not a new format; anything that this version would misread is."""


class Stage(StrEnum):
    CHALLENGER = "challenger"
    TASKS = "tasks"
    SOLVER = "solver"
    COMPARE = "compare"

    @property
    def job_name(self) -> str:
        """What the stage's Job does, and its module below `jobs`; the stage itself names its folder."""
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
        # Points at the Solver that the newest comparison kept.
        self.best = path / "best"
        # Questions with known verdicts that the judge was asked; apart from the records, which they never join.
        self.canaries = path / "canaries"
        # Judgements that were asked again.
        self.audit = path / "audit"
        # What servers compile for a model when they start, for their next start.
        self.caches = path / "cache"
        self.summary = path / "summary.json"
        self.log = path / "run.log"

    def stage(self, iteration: int, stage: Stage) -> StageFolder:
        return StageFolder(self.path / f"iteration-{iteration:02d}" / stage.value)


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


def parse_manifest(folder: Path) -> StageManifest | None:
    """The manifest of a finished stage, or None; its outputs are not looked at. Raises RecordError for damage."""
    path = folder / MANIFEST
    manifest = read_value(path, StageManifest, "restore it or remove the stage folder")
    if manifest is not None and manifest.format != FORMAT:
        raise RecordError(
            f"{path}: has format {manifest.format}, this version of scope reads format {FORMAT}; use the version that "
            "wrote it"
        )
    return manifest


def read_manifest(folder: Path) -> StageManifest | None:
    """The manifest of a finished stage, or None. Raises RecordError when an output is missing or changed."""
    manifest = parse_manifest(folder)
    if manifest is not None:
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
