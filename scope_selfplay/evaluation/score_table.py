"""The scores of an evaluation by checkpoint, scorer, judge and item: an item's samples become one value of each metric.

Several judges of one scorer stand beside each other, and as `all judges`: the mean of their values on each answer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from scope_selfplay.evaluation.agreement import ALL_JUDGES, Mark
from scope_selfplay.evaluation.benchmark import LoadedBenchmark
from scope_selfplay.evaluation.intervals import DIFFERENCES, SHARES, Estimate, estimate_mean
from scope_selfplay.evaluation.items import AnswerScore, Item
from scope_selfplay.evaluation.samples import majority, mean_of, pass_at, pass_counts
from scope_selfplay.evaluation.scorers import SCORERS, RuleScorer
from scope_selfplay.schemas import Value


class Column(NamedTuple):
    """One scorer with one judge, on one checkpoint's answers."""

    checkpoint: str
    scorer: str
    judge: str


class ResultRow(Value):
    """One number of the leaderboard. `part` is empty for all items and the whole answer."""

    checkpoint: str
    scorer: str
    judge: str = ""
    metric: str
    """`avg@k`, `pass@k` or `maj@k`."""
    part: str = ""
    """`group: NAME` for the items of a group, `criterion: NAME` for one dimension of the rubrics."""
    estimate: Estimate
    missing: int = 0
    """Items that a fault left without a score."""


class DifferenceRow(Value):
    """How far one checkpoint lies above another, paired by item."""

    checkpoint: str
    against: str
    scorer: str
    judge: str = ""
    metric: str
    estimate: Estimate


ByItem = Mapping[str, list[AnswerScore]]


class ScoreTable:
    """Scores in the order of the benchmark's items, whatever the order they come in."""

    def __init__(
        self, loaded: LoadedBenchmark, scores: Iterable[AnswerScore], *, seed: int, resamples: int
    ) -> None:
        self._items = {item.id: item for item in loaded.items}
        self._samples = loaded.benchmark.decoding.samples
        self._seed, self._resamples = seed, resamples
        columns: dict[Column, dict[str, list[AnswerScore]]] = defaultdict(lambda: defaultdict(list))
        known = (score for score in scores if score.item_id in self._items)
        for score in sorted(known, key=lambda each: each.sample):
            columns[Column(score.checkpoint, score.scorer, score.judge)][score.item_id].append(score)
        self._columns = {key: self._in_order(columns[key]) for key in sorted(columns)}
        self._columns |= _all_judges(self._columns)
        self._made: dict[Column, dict[str, dict[str, float | None]]] = {}
        used = {column.scorer for column in self._columns}
        self.scorer = next(
            (name for name in loaded.benchmark.scorers if name in used), loaded.benchmark.scorers[0]
        )
        self._scorers = [name for name in loaded.benchmark.scorers if name in used]

    @property
    def scores(self) -> list[AnswerScore]:
        """Every score of a judge or a rule, in order."""
        own = [by_item for column, by_item in self._columns.items() if column.judge != ALL_JUDGES]
        return [score for by_item in own for scores in by_item.values() for score in scores]

    def marks(self) -> Iterator[Mark]:
        """Values that judges gave."""
        for score in self.scores:
            if score.judge and score.value is not None:
                yield Mark(score.scorer, score.judge, score.item_id, score.answer_id, score.value)

    def rows(self, checkpoint: str) -> Iterator[ResultRow]:
        """Every metric over all items, then the mean by groups of items and by dimensions of the rubrics."""
        for column in self._of(checkpoint):
            for metric, values in self._metrics(column).items():
                yield from self._row(column, metric, values)
            for part, values in self._parts(column).items():
                yield from self._row(column, self._average, values, part)

    def differences(self, checkpoint: str, against: str) -> Iterator[DifferenceRow]:
        """Over the items that both have a value for."""
        for column in self._of(checkpoint):
            theirs = self._metrics(column._replace(checkpoint=against))
            for metric, mine in self._metrics(column).items():
                others = theirs.get(metric, {})
                pairs = [(value, others.get(item)) for item, value in mine.items()]
                gaps = [one - other for one, other in pairs if one is not None and other is not None]
                bounds = DIFFERENCES if all(-1 <= gap <= 1 for gap in gaps) else None
                estimate = self._estimate(gaps, bounds)
                if estimate is not None:
                    yield DifferenceRow(against=against, metric=metric, estimate=estimate, **column._asdict())

    def _row(
        self, column: Column, metric: str, values: Mapping[str, float | None], part: str = ""
    ) -> Iterator[ResultRow]:
        known = [value for value in values.values() if value is not None]
        estimate = self._estimate(known, SHARES if all(0 <= value <= 1 for value in known) else None)
        if estimate is not None:
            missing = len(values) - len(known)
            yield ResultRow(metric=metric, part=part, estimate=estimate, missing=missing, **column._asdict())

    def _estimate(self, values: Sequence[float], bounds: tuple[float, float] | None) -> Estimate | None:
        return estimate_mean(values, seed=self._seed, resamples=self._resamples, bounds=bounds)

    @property
    def _average(self) -> str:
        return f"avg@{self._samples}"

    def _of(self, checkpoint: str) -> list[Column]:
        """Its columns, in the order of the benchmark's scorers; several judges together before each alone."""
        own = [column for column in self._columns if column.checkpoint == checkpoint]
        return sorted(
            (column for column in own if column.scorer in self._scorers),
            key=lambda column: (self._scorers.index(column.scorer), column.judge != ALL_JUDGES, column.judge),
        )

    def _metrics(self, column: Column) -> dict[str, dict[str, float | None]]:
        """By metric and item; None for an item that has no value. Computed once."""
        if column not in self._made:
            self._made[column] = self._computed(column)
        return self._made[column]

    def _computed(self, column: Column) -> dict[str, dict[str, float | None]]:
        by_item = self._columns.get(column, {})
        metrics = {self._average: _each(by_item, _mean)}
        known = {score.value for scores in by_item.values() for score in scores} - {None}
        if self._samples == 1 or not known <= {0.0, 1.0}:
            return metrics
        for k in pass_counts(self._samples):
            metrics[f"pass@{k}"] = _each(by_item, partial(_pass, k=k))
        if isinstance(SCORERS[column.scorer], RuleScorer):
            metrics[f"maj@{self._samples}"] = _each(by_item, _majority)
        return metrics

    def _parts(self, column: Column) -> dict[str, dict[str, float | None]]:
        """Means by group of items and by dimension of the rubrics, where there is more than one."""
        by_item = self._columns.get(column, {})
        groups: dict[str, dict[str, float | None]] = defaultdict(dict)
        criteria: dict[str, dict[str, float | None]] = defaultdict(dict)
        for item_id, scores in by_item.items():
            item = self._items[item_id]
            groups[f"group: {item.group}"][item_id] = _mean(scores)
            for name, value in _dimensions(item, scores).items():
                criteria[f"criterion: {name}"][item_id] = value
        several = groups if len(groups) > 1 else {}
        return {name: part for parts in (several, criteria) for name, part in sorted(parts.items())}

    def _in_order(self, by_item: ByItem) -> ByItem:
        return {item: list(by_item[item]) for item in self._items if item in by_item}


def _each(by_item: ByItem, value: Callable[[Sequence[AnswerScore]], float | None]) -> dict[str, float | None]:
    return {item: value(scores) for item, scores in by_item.items()}


def _known(scores: Sequence[AnswerScore]) -> list[float]:
    return [score.value for score in scores if score.value is not None]


def _mean(scores: Sequence[AnswerScore]) -> float | None:
    values = _known(scores)
    return mean_of(values) if values else None


def _pass(scores: Sequence[AnswerScore], *, k: int) -> float | None:
    values = _known(scores)
    return pass_at(k, round(sum(values)), len(values)) if len(values) >= k else None


def _majority(scores: Sequence[AnswerScore]) -> float | None:
    known = [(score.label, score.value) for score in scores if score.value is not None]
    return majority([vote for vote, _ in known], [value for _, value in known]) if known else None


def _dimensions(item: Item, scores: Sequence[AnswerScore]) -> dict[str, float]:
    """The mean mark of the criteria of each dimension, over all samples."""
    marks: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        if len(score.marks) != len(item.criteria):
            continue
        for criterion, mark in zip(item.criteria, score.marks, strict=True):
            if criterion.dimension and mark is not None:
                marks[criterion.dimension].append(mark)
    return {name: mean_of(values) for name, values in marks.items()}


def _all_judges(columns: Mapping[Column, ByItem]) -> dict[Column, ByItem]:
    """A column for every scorer that several judges were asked by: the mean of those that gave a value."""
    judged: dict[Column, list[ByItem]] = defaultdict(list)
    for column, by_item in columns.items():
        if column.judge:
            judged[column._replace(judge=ALL_JUDGES)].append(by_item)
    return {column: _joined(several) for column, several in judged.items() if len(several) > 1}


def _joined(several: Sequence[ByItem]) -> ByItem:
    answers: dict[str, dict[str, list[AnswerScore]]] = defaultdict(lambda: defaultdict(list))
    for by_item in several:
        for item, scores in by_item.items():
            for score in scores:
                answers[item][score.answer_id].append(score)
    return {
        item: [scores[0].model_copy(update={"value": _mean(scores), "marks": ()}) for scores in own.values()]
        for item, own in answers.items()
    }
