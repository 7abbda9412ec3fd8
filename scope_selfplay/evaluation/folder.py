"""The folder of an evaluation: what is written while it works, and what a reader finds when it is done.

evaluation.json    what all contestants have in common: benchmark, decoding, budgets, prompts, judges, seed
items.jsonl        the questions
contestants.jsonl  who answered, in the order in which they came: later ones join the leaderboard
answers.jsonl      one line per answer, with its whole episode
scores.jsonl       one line per answer, scorer and judge
comparisons.jsonl  one line per pair of answers, order and judge
result.json        leaderboard, differences, groups; the same to the byte however often the command was stopped

Beside the lines lie the same records as parquet, and a card. Judgements that were paid for are in judgements.sqlite.
"""

import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pydantic import BaseModel

from scope_selfplay.base.errors import RecordError, RunMismatchError, did_you_mean
from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.terminal import Table
from scope_selfplay.base.values import Value
from scope_selfplay.evaluation.benchmarks import Budget, Decoding
from scope_selfplay.evaluation.metrics import EvaluationResult
from scope_selfplay.evaluation.pairs import PairVerdict
from scope_selfplay.evaluation.rows import Item
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from scope_selfplay.store.card import front_matter
from scope_selfplay.store.columns import record_from, write_columns
from scope_selfplay.store.files import (
    Appender,
    disk_faults,
    part_of,
    read_value,
    stream_records,
    sync_folder,
    with_lines,
    write_atomic,
)

Record = TypeVar("Record", Answer, AnswerScore, PairVerdict)


class EvaluationSpec(Value):
    """What all contestants of an evaluation have in common; another value is another evaluation."""

    benchmark: str
    items: str
    """Names the questions and how they are scored."""
    count: int
    seed: int
    decoding: Decoding
    budget: Budget
    scorers: tuple[str, ...]
    judges: tuple[str, ...]
    dialect: str
    prompts: str
    index: str
    version: str


class ContestantRecord(Value):
    """A line of `contestants.jsonl`."""

    name: str
    identity: str
    """Names the weights, or the file of answers."""


class EvaluationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "evaluation.json"
        self.items = path / "items.jsonl"
        self.contestants = path / "contestants.jsonl"
        self.answers = path / "answers.jsonl"
        self.scores = path / "scores.jsonl"
        self.comparisons = path / "comparisons.jsonl"
        self.result = path / "result.json"
        self.judgements = path / "judgements.sqlite"

    def begin(self, spec: EvaluationSpec, items: Sequence[BaseModel]) -> None:
        """Write what the evaluation is. Raises RunMismatchError where the folder holds another one."""
        before, new = self.read_spec(), spec.model_dump(mode="json")
        old = {} if before is None else before.model_dump(mode="json", exclude={"version"})
        if changed := [name for name in old if old[name] != new[name]]:
            raise RunMismatchError(
                f"{self.path}: holds another evaluation (other: {', '.join(changed)}); use another --out, or the "
                "settings that it was begun with"
            )
        if before is None:
            write_atomic(self.items, b"".join(each.model_dump_json().encode() + b"\n" for each in items))
            write_atomic(self.spec, spec.model_dump_json(indent=1) + "\n")

    def read_spec(self) -> EvaluationSpec | None:
        return read_value(self.spec, EvaluationSpec, "restore it, or use another --out")

    def join(self, joining: ContestantRecord) -> None:
        """Put a contestant on the list. Raises RunMismatchError where another one has its name."""
        known = {each.name: each for each in stream_records(self.contestants, ContestantRecord)}
        if joining.name not in known:
            with Appender(self.contestants) as contestants:
                contestants.append(joining)
        elif known[joining.name] != joining:
            raise RunMismatchError(
                f"{self.path}: {joining.name} was {known[joining.name].identity} and is now {joining.identity}; use "
                "another --out"
            )


def settle_lines(
    path: Path, model: type[Record], order: Callable[[Record], Any], looked_up: tuple[str, ...]
) -> None:
    """Put the records of a file into an order, the last of several of one place counts; and write them as parquet, in
    which the columns `looked_up` are found fast.

    Long texts stay on disk: only where they lie is held in memory.
    """
    if not path.exists():
        return
    places: dict[Hashable, tuple[Any, int, int]] = {}
    size = 0
    with disk_faults(path), path.open("rb") as file:
        for line, record in with_lines(file, path, model):
            places[record.place] = (order(record), size, len(line))
            size += len(line)
        lines = [(start, length) for _, start, length in sorted(places.values())]
        if lines != sorted(lines) or sum(length for _, length in lines) != size:
            temporary = part_of(path)
            with temporary.open("wb") as sorted_file:
                for start, length in lines:
                    file.seek(start)
                    sorted_file.write(file.read(length))
                sorted_file.flush()
                os.fsync(sorted_file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    write_columns(path, path.with_suffix(".parquet"), model, looked_up=looked_up)


class TaskChange(Value):
    """A task or an item and what two checkpoints scored on it; None where a score is missing."""

    task_id: str
    text: str
    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


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

    def changes(self, before: str, after: str) -> list[TaskChange]:
        """All items with the mean scores of two checkpoints by the benchmark's own scorer.

        Raises RecordError for a checkpoint that is not here.
        """
        for name in (before, after):
            if name not in self.checkpoints:
                there = f"there are {', '.join(self.checkpoints)}"
                raise RecordError(
                    f"{name}: no such checkpoint{did_you_mean(name, self.checkpoints)}; {there}"
                )
        values: dict[tuple[str, str], list[float]] = {}
        for score in self._records(self.folder.scores, AnswerScore, "scorer", self.result().scorer):
            if score.value is not None:
                values.setdefault((score.item_id, score.checkpoint), []).append(score.value)
        means = {place: sum(found) / len(found) for place, found in values.items()}
        return [
            TaskChange(
                task_id=item.id,
                text=item.question,
                before=means.get((item.id, before)),
                after=means.get((item.id, after)),
            )
            for item in self.questions.values()
        ]

    def item(self, item_id: str) -> ItemRecord:
        """Raises RecordError for an item that the benchmark does not have."""
        item = self.questions.get(item_id)
        if item is None:
            raise RecordError(f"{item_id}: is no item of {self.name}{did_you_mean(item_id, self.questions)}")
        answers = list(self._records(self.folder.answers, Answer, "item_id", item_id))
        scores = list(self._records(self.folder.scores, AnswerScore, "item_id", item_id))
        order = {name: number for number, name in enumerate(self.checkpoints)}
        answers.sort(key=lambda answer: (order.get(answer.checkpoint, len(order)), answer.sample))
        return ItemRecord(
            item,
            tuple(
                ScoredAnswer(answer, tuple(each for each in scores if each.answer_id == answer.id))
                for answer in answers
            ),
            tuple(self._records(self.folder.comparisons, PairVerdict, "item_id", item_id)),
        )

    def _records(self, path: Path, model: type[Record], column: str, value: str) -> Iterator[Record]:
        columns = path.with_suffix(".parquet")
        if self.folder.result.exists() and columns.exists():
            for row in pq.read_table(columns, filters=[(column, "=", value)]).to_pylist():
                yield record_from(model, row)
            return
        yield from (each for each in stream_records(path, model) if getattr(each, column) == value)


def is_evaluation(path: Path) -> bool:
    """Whether a folder is one of `scope eval`."""
    return (path / "evaluation.json").is_file()


Cells = tuple[str, ...]


def tables_of(result: EvaluationResult) -> Iterator[Table]:
    """The leaderboard, then what it is made of; only tables that have rows."""
    yield _leaderboard(result)
    for title, head, rows in (
        ("Groups", "checkpoint, group, scorer, score, items", _parts(result)),
        ("Differences", "checkpoint, above, scorer, by, items", _differences(result)),
        ("Beside each other", "one, other, by, judge, rate, wins, ties, losses", _wins(result)),
        ("Ratings", "checkpoint, judge, points", _ratings(result)),
        ("How far judges agree", "scorer, one, other, answers, same, kappa, correlation", _agreement(result)),
        ("What it took", "checkpoint, searches, tokens, context, judge calls, judge tokens", _costs(result)),
    ):
        if found := tuple(rows):
            yield Table(title, tuple(head.split(", ")), found)


def noted(estimate: Estimate | None, *, sign: bool = False, missing: int = 0) -> str:
    """With what to beware of: `0.500 [0.095, 0.905] (only 2 items, 1 missing)`."""
    notes = [] if estimate is None or not estimate.note else [estimate.note]
    notes += [f"{missing:,} missing"] if missing else []
    return f"{shown(estimate, sign=sign)} ({', '.join(notes)})" if notes else shown(estimate, sign=sign)


def _leaderboard(result: EvaluationResult) -> Table:
    """The best first, by the number that the benchmark is known by."""
    whole = [row for row in result.rows if not row.part]
    columns = list(dict.fromkeys((row.scorer, row.judge, row.metric) for row in whole))
    several = len({judge for _, judge, _ in columns if judge}) > 1
    titles = [
        f"{scorer} {metric} by {judge}" if judge and several else f"{scorer} {metric}"
        for scorer, judge, metric in columns
    ]
    cells = {
        (row.checkpoint, row.scorer, row.judge, row.metric): noted(row.estimate, missing=row.missing)
        for row in whole
    }
    rows = []
    for row in result.behaviour:
        headline = result.headline(row.checkpoint)
        answers = f"{row.answers:,} ({row.failed:,} failed)" if row.failed else f"{row.answers:,}"
        scores = (cells.get((row.checkpoint, *column), "-") for column in columns)
        place = -math.inf if headline is None else headline.value
        rows.append((place, (row.checkpoint, *scores, shown(row.valid), answers)))
    rows.sort(key=lambda row: -row[0])
    return Table("", ("checkpoint", *titles, "valid", "answers"), tuple(line for _, line in rows))


def _parts(result: EvaluationResult) -> Iterator[Cells]:
    parts = (row for row in result.rows if row.part)
    for row in sorted(parts, key=lambda row: (row.part, row.scorer, row.metric)):
        scorer, items = f"{row.scorer} {row.metric}", f"{row.estimate.items}"
        yield (row.checkpoint, row.part, scorer, shown(row.estimate), items)


def _differences(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.differences:
        by = noted(row.estimate, sign=True)
        yield (row.checkpoint, row.against, f"{row.scorer} {row.metric}", by, f"{row.estimate.items}")


def _wins(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.wins:
        counts = (f"{row.wins:,}", f"{row.ties:,}", f"{row.losses:,}")
        yield (row.one, row.other, row.part or "whole answers", row.judge, shown(row.rate), *counts)


def _ratings(result: EvaluationResult) -> Iterator[Cells]:
    for judge, ratings in result.elo.items():
        for name, estimate in sorted(ratings.items(), key=lambda pair: -pair[1].value):
            yield (name, judge, shown(estimate, digits=0, sign=True))


def _agreement(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.agreement:
        numbers = ("-" if each is None else f"{each:.2f}" for each in (row.same, row.kappa, row.correlation))
        yield (row.scorer, row.one, row.other, f"{row.answers:,}", *numbers)


def _costs(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.behaviour:
        taken = [
            "-" if estimate is None else f"{estimate.value:,.{digits}f}"
            for estimate, digits in ((row.searches, 2), (row.tokens, 0), (row.context, 0))
        ]
        yield (row.checkpoint, *taken, f"{row.judge_calls:.1f}", f"{row.judge_tokens:,.0f}")


_FILES = {
    "answers": "one row per answer: the whole episode with its searches, tokens sampled",
    "scores": "one row per answer, scorer and judge: value, marks per criterion, verdicts with reasoning",
    "comparisons": "one row per pair of answers, order and judge",
}


def evaluation_card(folder: Path, spec: EvaluationSpec, result: EvaluationResult) -> str:
    there = [name for name in _FILES if (folder / f"{name}.parquet").exists()]
    title = f"{spec.benchmark}: {spec.count:,} items"
    configs = {name: {"test": [f"{name}.parquet"]} for name in there}
    lines = [front_matter(title, configs, "evaluation"), f"# {title}", ""]
    lines += [*(line for table in tables_of(result) for line in table.markdown()), ""]
    lines += [f"- `{name}`: {_FILES[name]}" for name in there]
    asked = {
        "samples": spec.decoding.samples,
        "budget": f"{spec.budget.answer:,} tokens of answer in {spec.budget.context:,} of context, "
        f"{spec.budget.search_turns} searches",
        "judges": ", ".join(spec.judges) or "none",
        **spec.model_dump(include={"seed", "prompts", "index", "version"}),
    }
    lines += ["", "## How it was asked", "", *(f"- {name}: {value}" for name, value in asked.items()), ""]
    return "\n".join(lines)
