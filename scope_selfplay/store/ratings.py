"""`ratings.json` of a comparison: the values in it and the one function that reads it."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Value
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folder import RunFolder, Stage


class Fork(Value):
    """A run whose iterations 0 to `after` are those of `run`.

    `config_hashes` are the configs that made them, one per iteration: a fork of a fork has several. `changed` are the
    settings that the run went on with and their values before and after. Of a corpus that was read again (`corpus` in
    `changed`), `rewritten` are documents with another text, which may give tasks once more, and `held_out` those that
    give none.
    """

    run: str
    after: int
    config_hashes: tuple[str, ...]
    changed: dict[str, tuple[object, object]]
    version: str
    rewritten: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()


def read_fork(folder: RunFolder) -> Fork | None:
    """None for a run of its own. Raises RecordError where the file is damaged."""
    return read_value(folder.fork, Fork, "restore it, or fork the run again")


def shared_words(fork: Fork) -> str:
    """Whose iterations a run has, in words."""
    which = "iteration 0 is that" if fork.after == 0 else f"iterations 0 to {fork.after} are those"
    changed = ", ".join(f"{name}={after}" for name, (_, after) in fork.changed.items())
    return f"{which} of the run {fork.run}" + (f"; from then on {changed}" if changed else "")


class Decision(StrEnum):
    PROMOTE = "promote"
    KEEP = "keep"
    STOP = "stop"


def _read(found: Any) -> Any:
    """From the names of the file."""
    names = {"mean_score": "value", "tasks": "items"}
    return {names.get(name, name): each for name, each in found.items()} if isinstance(found, dict) else found


def _written(name: str) -> PlainSerializer:
    def write(found: Estimate) -> dict[str, int | float | None]:
        return {name: found.value, "low": found.low, "high": found.high, "tasks": found.items}

    return PlainSerializer(write)


MeanScore = Annotated[Estimate, BeforeValidator(_read), _written("mean_score")]
"""A mean over tasks, as the file names its numbers."""
Difference = Annotated[Estimate, BeforeValidator(_read), _written("value")]
"""How far one checkpoint lies above another, in units of the evidence."""


class SwapRow(Value):
    """Held-out score of answers from another Solver's searches; `gain` over the earlier Solver alone, by task."""

    search: str
    answer: str
    score: MeanScore
    gain: Difference | None


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


class Ruling(Value):
    """`promoted`: whether S_t replaces the checkpoint that it was trained from; a stop decides that, too."""

    decision: Decision = Decision.PROMOTE
    promoted: bool
    reason: str = ""


class Ratings(Ruling):
    """What a comparison found and decided.

    `ratings` are in units of the judge's margin, with S_0 at 0; a checkpoint that was never judged has none. `elo`
    counts wins and ties instead of margins (Bradley-Terry), in points above S_0. Over one task nothing has an interval.
    `starts` are the checkpoints that iterations 1 to t were trained from; S_t is measured against the last of them:
    `gain` by held-out scores, `rating_gain` by comparisons, both paired by task. `edges` is the comparison graph of all
    iterations so far.
    """

    starts: tuple[str, ...] = ()
    gain: MeanScore | None = None
    rating_gain: Difference | None = None
    ratings: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    elo: dict[str, float] = Field(default_factory=dict)
    elo_intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    position_offset: float = 0.0
    edges: tuple[CheckpointPair, ...] = ()
    held_out: dict[str, dict[str, MeanScore]] = Field(default_factory=dict)


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
    rated = [number for number in folder.iterations() if folder.stage(number, Stage.COMPARE).ratings.exists()]
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


def find_ratings(folder: RunFolder, iteration: int) -> Ratings | None:
    """None before the iteration's comparison came to its end. Raises RecordError where they are damaged, StorageError
    where the volume cannot be read.
    """
    path = folder.stage(iteration, Stage.COMPARE).ratings
    return read_value(path, Ratings, "restore it, or remove its stage folder")


def read_ratings(folder: RunFolder, iteration: int) -> Ratings:
    """The ratings of a finished comparison. Raises as `find_ratings`, and RecordError where they are missing."""
    ratings = find_ratings(folder, iteration)
    if ratings is None:
        path = folder.stage(iteration, Stage.COMPARE).ratings
        raise RecordError(f"{path}: is missing; remove its stage folder, and run the comparison again")
    return ratings
