"""Where everything of a run lies; the same on a laptop and on a shared volume."""

from enum import StrEnum
from pathlib import Path

from scope_selfplay.store.folders import StageManifest, read_manifest


class Stage(StrEnum):
    CHALLENGER = "challenger"
    TASKS = "tasks"
    SOLVER = "solver"
    COMPARE = "compare"


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
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint"
        # Hidden: what a stage needs to go on after a kill; removed once its manifest stands.
        self.work = path / ".work"

    @property
    def manifest(self) -> StageManifest | None:
        return read_manifest(self.path)


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "run.yaml"
        # Stands until everything that a run starts from is written: what lies beside it is ours to write again.
        self.beginning = path / ".beginning"
        self.prompts = path / "prompts"
        self.corpus = path / "corpus.jsonl"
        # What the run searches: written when its first search is prepared.
        self.index = path / "index.json"
        self.summary = path / "summary.json"
        self.log = path / "run.log"

    def stage(self, iteration: int, stage: Stage) -> StageFolder:
        return StageFolder(self.path / f"iteration-{iteration:02d}" / stage.value)
