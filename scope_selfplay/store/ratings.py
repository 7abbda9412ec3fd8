"""`ratings.json` of a comparison: the values in it and the one function that reads it."""

from enum import StrEnum

from pydantic import Field

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Value
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folders import RunFolder, Stage


class Decision(StrEnum):
    PROMOTE = "promote"
    KEEP = "keep"
    STOP = "stop"


class ScoreEstimate(Value):
    """A mean over tasks with its 95 % interval; one task has none."""

    mean_score: float
    low: float | None
    high: float | None
    tasks: int


class CheckpointDifference(Value):
    """How far one checkpoint lies above another, in units of the evidence, with its interval over tasks; one task has
    none.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int


class SwapRow(Value):
    """Held-out score of answers from another Solver's searches; `gain` over the earlier Solver alone, by task."""

    search: str
    answer: str
    score: ScoreEstimate
    gain: CheckpointDifference | None


class SwapTable(Value):
    """`swaps.json` of a comparison (SCOPE Table 4)."""

    rows: tuple[SwapRow, ...]


class CheckpointPair(Value):
    """Two checkpoints that met, the newer one second: an edge of the comparison graph.

    `wins`, `ties` and `losses` are the newer one's; `equal` of the ties are pairs of equal answers, for which nobody
    was asked; `failed` calls brought no verdict. `mean_margin` is the newer one's score less the older one's, and
    `newer_first` counts the judged calls that showed the newer one first.
    """

    older: str
    newer: str
    wins: int = 0
    ties: int = 0
    losses: int = 0
    equal: int = 0
    failed: int = 0
    newer_first: int = 0
    mean_margin: float | None = None


class Ratings(Value):
    """What a comparison found and decided; `promoted`: whether S_t replaces the checkpoint that it was trained from.

    `ratings` are in units of the judge's margin, with S_0 at 0; a checkpoint that was never judged has none. `elo`
    counts wins and ties instead of margins (Bradley-Terry), in points above S_0. Over one task nothing has an interval.
    `starts` are the checkpoints that iterations 1 to t were trained from; S_t is measured against the last of them:
    `gain` by held-out scores, `rating_gain` by comparisons, both paired by task. `edges` is the comparison graph of all
    iterations so far.
    """

    decision: Decision = Decision.PROMOTE
    promoted: bool
    reason: str = ""
    starts: tuple[str, ...] = ()
    gain: ScoreEstimate | None = None
    rating_gain: CheckpointDifference | None = None
    ratings: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    elo: dict[str, float] = Field(default_factory=dict)
    elo_intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    position_offset: float = 0.0
    edges: tuple[CheckpointPair, ...] = ()
    held_out: dict[str, dict[str, ScoreEstimate]] = Field(default_factory=dict)


class KeptSolver(Value):
    """S_t that the newest comparison left in place, and the ruling: the next iteration would start from it."""

    solver: str
    iteration: int
    checkpoint: str
    """Its folder in that of the run; empty for S_0, the base model."""
    ruled_in: int
    """The iteration of the newest comparison."""
    decision: Decision
    reason: str

    @property
    def words(self) -> str:
        return f"{self.solver}, by iteration {self.ruled_in}: {self.decision}: {self.reason}"


def kept_solver(folder: RunFolder) -> KeptSolver | None:
    """None before the first comparison has ended. Raises RecordError where ratings are damaged."""
    numbers = (path.name.removeprefix("iteration-") for path in folder.path.glob("iteration-*"))
    rated = sorted(int(each) for each in numbers if each.isdecimal() and has_ratings(folder, int(each)))
    if not rated:
        return None
    promoted = (number for number in reversed(rated) if number and read_ratings(folder, number).promoted)
    kept, newest = next(promoted, 0), read_ratings(folder, rated[-1])
    checkpoint = folder.stage(kept, Stage.SOLVER).checkpoint.relative_to(folder.path)
    return KeptSolver(
        solver=f"S_{kept}",
        iteration=kept,
        checkpoint=str(checkpoint) if kept else "",
        ruled_in=rated[-1],
        decision=newest.decision,
        reason=newest.reason,
    )


def has_ratings(folder: RunFolder, iteration: int) -> bool:
    """Whether the iteration's comparison came to its end."""
    return folder.stage(iteration, Stage.COMPARE).ratings.exists()


def read_ratings(folder: RunFolder, iteration: int) -> Ratings:
    """The ratings of a finished comparison. Raises RecordError where they are missing or damaged, StorageError where
    the volume cannot be read.
    """
    path = folder.stage(iteration, Stage.COMPARE).ratings
    ratings = read_value(path, Ratings, "restore it, or remove its stage folder")
    if ratings is None:
        raise RecordError(f"{path}: is missing; remove its stage folder, and run the comparison again")
    return ratings
