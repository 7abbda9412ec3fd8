"""An evaluation's folder as its readers want it: result, items with their scores, one item with all its answers.

    with_scores = EvaluationReader(Path("evaluations/popqa")).items(("demo:S_2", "demo:S_0"))

Finished, it is read from parquet, by columns and by id; while it works, from the lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.benchmarking.records import Answer, ContestantRecord, EvaluationFolder, EvaluationSpec
from scope_selfplay.errors import RecordError, did_you_mean
from scope_selfplay.evaluation.items import AnswerScore, Item
from scope_selfplay.evaluation.results import EvaluationResult
from scope_selfplay.evaluation.win_rates import PairVerdict
from scope_selfplay.store.files import read_value, stream_records
from scope_selfplay.store.parquet import record_from

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ItemScores:
    """An item and the mean score of each checkpoint on it, by the benchmark's own scorer; None where there is none."""

    item: Item
    scores: Mapping[str, float | None]

    def gain(self, one: str, other: str) -> float | None:
        """How far `other` lies above `one`."""
        before, after = self.scores.get(one), self.scores.get(other)
        return None if before is None or after is None else after - before


@dataclass(frozen=True)
class ScoredAnswer:
    answer: Answer
    scores: tuple[AnswerScore, ...]


@dataclass(frozen=True)
class ItemRecord:
    """One item with everything that was kept of it, in the order of the contestants."""

    item: Item
    answers: tuple[ScoredAnswer, ...]
    comparisons: tuple[PairVerdict, ...]


class EvaluationReader:
    """Raises RecordError where the folder is not an evaluation's, or where a record is damaged."""

    def __init__(self, path: Path) -> None:
        self.folder = EvaluationFolder(path)
        spec = self.folder.read_spec()
        if spec is None:
            raise RecordError(f"{path}: has no evaluation.json, so it is no folder of `scope eval`")
        self.spec: EvaluationSpec = spec

    @property
    def name(self) -> str:
        return f"{self.spec.benchmark} ({self.folder.path.resolve().name})"

    @property
    def checkpoints(self) -> list[str]:
        return [each.name for each in stream_records(self.folder.contestants, ContestantRecord)]

    @cached_property
    def questions(self) -> dict[str, Item]:
        return {item.id: item for item in stream_records(self.folder.items, Item)}

    def result(self) -> EvaluationResult:
        """Raises RecordError where the evaluation has not ended, or its result is damaged."""
        advice = "remove it and give the same `scope eval` command again"
        result = read_value(self.folder.result, EvaluationResult, advice)
        if result is None:
            raise RecordError(
                f"{self.folder.path}: has no result yet; give the same `scope eval` command again to go on"
            )
        return result

    def items(self, checkpoints: Sequence[str] | None = None) -> list[ItemScores]:
        """All items with their scores by these checkpoints, in the order of the benchmark."""
        wanted = list(checkpoints or self.checkpoints)
        scorer = self.result().scorer
        values: dict[tuple[str, str], list[float]] = {}
        for score in self._records(self.folder.scores, AnswerScore, "scorer", [scorer]):
            if score.value is not None and score.checkpoint in wanted:
                values.setdefault((score.item_id, score.checkpoint), []).append(score.value)
        means = {place: sum(found) / len(found) for place, found in values.items()}
        return [
            ItemScores(item, {name: means.get((item.id, name)) for name in wanted})
            for item in self.questions.values()
        ]

    def item(self, item_id: str) -> ItemRecord:
        """Raises RecordError for an item that the benchmark does not have."""
        item = self.questions.get(item_id)
        if item is None:
            raise RecordError(f"{item_id}: is no item of {self.name}{did_you_mean(item_id, self.questions)}")
        answers = list(self._records(self.folder.answers, Answer, "item_id", [item_id]))
        scores = list(self._records(self.folder.scores, AnswerScore, "item_id", [item_id]))
        of_answer = {
            answer.id: tuple(each for each in scores if each.answer_id == answer.id) for answer in answers
        }
        order = {name: number for number, name in enumerate(self.checkpoints)}
        answers.sort(key=lambda answer: (order.get(answer.checkpoint, len(order)), answer.sample))
        return ItemRecord(
            item,
            tuple(ScoredAnswer(answer, of_answer[answer.id]) for answer in answers),
            tuple(self._records(self.folder.comparisons, PairVerdict, "item_id", [item_id])),
        )

    def _records(self, path: Path, model: type[Model], column: str, values: Iterable[str]) -> Iterator[Model]:
        columns = path.with_suffix(".parquet")
        wanted = list(values)
        if self.folder.result.exists() and columns.exists():
            for row in pq.read_table(columns, filters=[(column, "in", wanted)]).to_pylist():
                yield record_from(model, row)
            return
        yield from (each for each in stream_records(path, model) if getattr(each, column) in wanted)


def in_order_of_change(items: Iterable[ItemScores], one: str, other: str) -> list[ItemScores]:
    """The most changed first; items without both scores last."""

    def key(row: ItemScores) -> tuple[bool, float]:
        gain = row.gain(one, other)
        return gain is None, -abs(gain or 0.0)

    return sorted(items, key=key)


def is_evaluation(path: Path) -> bool:
    """Whether a folder is one of `scope eval`."""
    return (path / "evaluation.json").is_file()
