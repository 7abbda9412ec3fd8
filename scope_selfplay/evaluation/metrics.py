"""Scores of answers become one `result.json`: a leaderboard with intervals, differences, win rates, costs. Pure.

An item is what counts: its samples become one value, and means, intervals and differences are over items. Judges
of one scorer stand beside each other, and as `all judges`: the mean of their values on each answer. The same records
give the same result to the byte, in whatever order they were written.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import comb
from statistics import fmean
from typing import NamedTuple

from scope_selfplay.base.intervals import (
    DIFFERENCES,
    SHARES,
    Estimate,
    Estimator,
    estimate_mean,
    mean_by_item,
)
from scope_selfplay.base.values import RolloutStatus, Value
from scope_selfplay.evaluation.benchmarks import Benchmark
from scope_selfplay.evaluation.pairs import (
    ALL_JUDGES,
    Agreement,
    Mark,
    PairVerdict,
    WinRate,
    agreements,
    pair_marks,
    win_rates,
)
from scope_selfplay.evaluation.ratings import elo_ratings
from scope_selfplay.evaluation.scorers import LABELS, SCORERS, Answer, AnswerScore


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


class BehaviourRow(Value):
    """What a checkpoint's answers took, and what judging them took.

    Failed answers are left out of all but their count: no policy is to blame for an engine.
    """

    checkpoint: str
    answers: int
    failed: int
    valid: Estimate | None
    """The share of answers that came to an end with an answer (ArenaRL's valid generation rate)."""
    truncated: Estimate | None
    """The share that a limit of tokens ended."""
    searches: Estimate | None
    tokens: Estimate | None
    """Tokens that the policy wrote, per answer."""
    context: Estimate | None
    """Tokens that an episode held at its end."""
    judge_calls: float
    """Calls per item for scores, as if none had been paid before."""
    judge_tokens: float
    """Tokens in and out of the judges for scores, per item."""
    labels: dict[str, int]
    """How many answers a judge with the reference found correct, incorrect, not attempted."""


class EvaluationResult(Value):
    """`result.json`. Checkpoints are in the order in which they were given."""

    benchmark: str
    title: str
    identity: str
    """Of the items and settings: results of equal ones may be compared."""
    items: int
    samples: int
    scorer: str
    """The one that the benchmark is known by."""
    checkpoints: tuple[str, ...]
    rows: tuple[ResultRow, ...]
    differences: tuple[DifferenceRow, ...]
    """Of every two checkpoints, the later one less the earlier one."""
    behaviour: tuple[BehaviourRow, ...]
    wins: tuple[WinRate, ...]
    elo: dict[str, dict[str, Estimate]]
    """By judge and checkpoint: points above the first checkpoint (Bradley-Terry). `all judges` pools their verdicts."""
    agreement: tuple[Agreement, ...]

    def headline(self, checkpoint: str) -> Estimate | None:
        """The number by which a checkpoint stands on the leaderboard: that of several judges together."""
        whole = (row for row in self.rows if row.checkpoint == checkpoint and not row.part)
        return next((row.estimate for row in whole if row.scorer == self.scorer), None)


def evaluation_result(
    loaded: Benchmark,
    checkpoints: Sequence[str],
    answers: Iterable[Answer],
    scores: Iterable[AnswerScore],
    comparisons: Iterable[PairVerdict] = (),
    *,
    seed: int,
) -> EvaluationResult:
    """`checkpoints` in the order of the report; Elo counts from the first. `answers` are read once and not held."""
    estimate = partial(estimate_mean, seed=seed)
    known = list(scores)
    columns, used = _columns(loaded, known), {score.scorer for score in known}
    marks = [
        Mark(each.scorer, each.judge, each.item_id, each.answer_id, each.value)
        for each in known
        if each.judge and each.value is not None
    ]
    met = sorted(
        comparisons, key=lambda each: (each.judge, each.item_id, each.first, each.second, each.place)
    )
    return EvaluationResult(
        benchmark=loaded.name,
        title=loaded.title,
        identity=loaded.identity,
        items=len(loaded.items),
        samples=loaded.decoding.samples,
        scorer=next((name for name in loaded.scorers if name in used), loaded.scorers[0]),
        checkpoints=tuple(checkpoints),
        rows=tuple(_rows(loaded, columns, checkpoints, estimate)),
        differences=tuple(_differences(loaded, columns, checkpoints, estimate)),
        behaviour=tuple(_behaviour(checkpoints, answers, known, estimate)),
        wins=tuple(win_rates(met, checkpoints, estimate)),
        elo={judge: elo_ratings(pairs, checkpoints, seed=seed) for judge, pairs in _by_judge(met).items()},
        agreement=tuple(agreements((*marks, *pair_marks(met)))),
    )


class Column(NamedTuple):
    """One scorer with one judge, on one checkpoint's answers."""

    checkpoint: str
    scorer: str
    judge: str


ByItem = Mapping[str, Sequence[AnswerScore]]
Values = Mapping[str, float | None]
"""By item; None where a fault left it open."""


def _columns(loaded: Benchmark, scores: Iterable[AnswerScore]) -> dict[Column, ByItem]:
    """By checkpoint, then in the order of the benchmark's scorers, several judges together before each alone; each in
    the order of the items and samples.
    """
    places, scorers = {item.id: place for place, item in enumerate(loaded.items)}, loaded.scorers
    found: dict[Column, dict[str, list[AnswerScore]]] = defaultdict(lambda: defaultdict(list))
    answers: dict[tuple[str, str], dict[str, list[AnswerScore]]] = defaultdict(lambda: defaultdict(list))
    for score in sorted(scores, key=lambda each: (places[each.item_id], each.sample, each.judge)):
        found[Column(score.checkpoint, score.scorer, score.judge)][score.item_id].append(score)
        answers[score.checkpoint, score.scorer][score.answer_id].append(score)
    for (checkpoint, scorer), by_answer in answers.items():
        if len({score.judge for several in by_answer.values() for score in several}) > 1:
            pooled = found[Column(checkpoint, scorer, ALL_JUDGES)]
            for several in by_answer.values():
                mean = several[0].model_copy(update={"value": _mean(several), "marks": ()})
                pooled[mean.item_id].append(mean)
    order = sorted(found, key=lambda each: (scorers.index(each.scorer), each.judge != ALL_JUDGES, each.judge))
    return {column: found[column] for column in order}


def _rows(
    loaded: Benchmark, columns: Mapping[Column, ByItem], checkpoints: Sequence[str], estimate: Estimator
) -> Iterator[ResultRow]:
    """Every metric over all items, then the mean by groups of items and by dimensions of the rubrics."""
    samples = loaded.decoding.samples
    for column in (each for name in checkpoints for each in columns if each.checkpoint == name):
        told = [(metric, "", each) for metric, each in _metrics(column, columns[column], samples).items()]
        told += [(f"avg@{samples}", part, each) for part, each in _parts(loaded, columns[column]).items()]
        for metric, part, values in told:
            known = [value for value in values.values() if value is not None]
            found = estimate(known, bounds=SHARES if all(0 <= value <= 1 for value in known) else None)
            if found is not None:
                missing = len(values) - len(known)
                yield ResultRow(metric=metric, part=part, estimate=found, missing=missing, **column._asdict())


def _differences(
    loaded: Benchmark, columns: Mapping[Column, ByItem], checkpoints: Sequence[str], estimate: Estimator
) -> Iterator[DifferenceRow]:
    """Over the items that both have a value for."""
    samples = loaded.decoding.samples
    metrics = {column: _metrics(column, by_item, samples) for column, by_item in columns.items()}
    for against, name in combinations(checkpoints, 2):
        for column in (each for each in columns if each.checkpoint == name):
            theirs = metrics.get(column._replace(checkpoint=against), {})
            for metric, mine in metrics[column].items():
                pairs = [(value, theirs.get(metric, {}).get(item)) for item, value in mine.items()]
                gaps = [one - other for one, other in pairs if one is not None and other is not None]
                found = estimate(gaps, bounds=DIFFERENCES if all(-1 <= gap <= 1 for gap in gaps) else None)
                if found is not None:
                    yield DifferenceRow(against=against, metric=metric, estimate=found, **column._asdict())


def _metrics(column: Column, by_item: ByItem, samples: int) -> dict[str, Values]:
    """By metric and item."""
    known = {item: [each for each in scores if each.value is not None] for item, scores in by_item.items()}
    values = {item: [each.value or 0.0 for each in scores] for item, scores in known.items()}
    found: dict[str, Values] = {f"avg@{samples}": {item: _mean(scores) for item, scores in known.items()}}
    if samples > 1 and {value for several in values.values() for value in several} <= {0.0, 1.0}:
        for k in pass_counts(samples):
            found[f"pass@{k}"] = {
                item: pass_at(k, round(sum(each)), len(each)) if len(each) >= k else None
                for item, each in values.items()
            }
        if not SCORERS[column.scorer].asks_judge:
            votes = {item: [each.label for each in scores] for item, scores in known.items()}
            found[f"maj@{samples}"] = {
                item: majority(votes[item], each) if each else None for item, each in values.items()
            }
    return found


def _parts(loaded: Benchmark, by_item: ByItem) -> dict[str, Values]:
    """Means by group of items, where there are several, and by dimension of the rubrics."""
    groups: dict[str, dict[str, float | None]] = defaultdict(dict)
    criteria: dict[str, dict[str, float | None]] = defaultdict(dict)
    for item in (item for item in loaded.items if item.id in by_item):
        groups[f"group: {item.group}"][item.id] = _mean(by_item[item.id])
        marks: dict[str, list[float]] = defaultdict(list)
        for score in by_item[item.id]:
            if len(score.marks) == len(item.criteria):
                for criterion, mark in zip(item.criteria, score.marks, strict=True):
                    if criterion.dimension and mark is not None:
                        marks[criterion.dimension].append(mark)
        for name, values in marks.items():
            criteria[f"criterion: {name}"][item.id] = fmean(values)
    several = groups if len(groups) > 1 else {}
    return {name: part for parts in (several, criteria) for name, part in sorted(parts.items())}


def _mean(scores: Sequence[AnswerScore]) -> float | None:
    known = [score.value for score in scores if score.value is not None]
    return fmean(known) if known else None


def pass_at(k: int, right: int, samples: int) -> float:
    """The probability that one of k answers is right, drawn without replacement from `samples` of which `right` are.

    1 - C(samples - right, k) / C(samples, k): the unbiased estimate of Chen et al. (2021), equation 1.
    """
    return 1 - comb(samples - right, k) / comb(samples, k)


def pass_counts(samples: int) -> tuple[int, ...]:
    """The k for which pass@k is told: powers of two, and all samples."""
    return tuple(sorted({samples, *(1 << bit for bit in range(samples.bit_length()))}))


def majority(votes: Sequence[str], values: Sequence[float]) -> float:
    """maj@k: the value of what most answers say; where several are said as often, their mean.

    An empty vote is no answer and counts for none; 0 where nobody voted. Equal votes that differ in value count as
    their mean.
    """
    said: dict[str, list[float]] = defaultdict(list)
    for vote, value in zip(votes, values, strict=True):
        if vote:
            said[vote].append(value)
    most = max(map(len, said.values()), default=0)
    return fmean([fmean(own) for own in said.values() if len(own) == most]) if said else 0.0


def _behaviour(
    checkpoints: Sequence[str], answers: Iterable[Answer], scores: Sequence[AnswerScore], estimate: Estimator
) -> Iterator[BehaviourRow]:
    bounds = {"valid": SHARES, "truncated": SHARES, "searches": None, "tokens": None, "context": None}
    taken: dict[str, list[tuple[str, tuple[float, ...]]]] = {name: [] for name in checkpoints}
    items: dict[str, set[str]] = {name: set() for name in checkpoints}
    failed: Counter[str] = Counter()
    for each in answers:
        items[each.checkpoint].add(each.item_id)
        status = each.rollout.status
        if status is RolloutStatus.FAILED:
            failed[each.checkpoint] += 1
            continue
        valid = status is RolloutStatus.FINISHED and each.rollout.answer is not None
        truncated = status is RolloutStatus.TRUNCATED
        numbers = (valid, truncated, each.rollout.searches, each.tokens, each.context)
        taken[each.checkpoint].append((each.item_id, numbers))
    for name, finished in taken.items():
        finished.sort()
        given = [score for score in scores if score.checkpoint == name]
        verdicts = [each for score in given for each in score.verdicts if each.attempts]
        labels = Counter(score.label for score in given if score.judge)
        count = len(items[name]) or 1
        yield BehaviourRow(
            checkpoint=name,
            answers=len(finished) + failed[name],
            failed=failed[name],
            **{
                number: estimate(mean_by_item((item, each[place]) for item, each in finished), bounds=limits)
                for place, (number, limits) in enumerate(bounds.items())
            },
            judge_calls=len(verdicts) / count,
            judge_tokens=sum(each.tokens_in + each.tokens_out for each in verdicts) / count,
            labels={label: labels[label] for label in LABELS.values() if labels[label]},
        )


def _by_judge(met: Iterable[PairVerdict]) -> dict[str, list[PairVerdict]]:
    found: dict[str, list[PairVerdict]] = defaultdict(list)
    for verdict in met:
        if verdict.criterion is None:
            found[verdict.judge].append(verdict)
    pooled = [pair for own in found.values() for pair in own]
    return {ALL_JUDGES: pooled, **found} if len(found) > 1 else dict(found)
