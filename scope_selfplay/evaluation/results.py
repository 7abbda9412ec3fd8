"""Scores of answers become one `result.json`: a leaderboard with intervals, differences, win rates, costs. Pure.

An item is what counts: its samples become one value, and means, intervals and differences are over items. The same
records give the same result to the byte, in whatever order they were written.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from scope_selfplay.evaluation.agreement import ALL_JUDGES, Agreement, agreements
from scope_selfplay.evaluation.behaviour import BehaviourRow, behaviour_of
from scope_selfplay.evaluation.benchmark import LoadedBenchmark
from scope_selfplay.evaluation.bradley_terry import elo_ratings
from scope_selfplay.evaluation.intervals import Estimate
from scope_selfplay.evaluation.items import AnswerFacts, AnswerScore
from scope_selfplay.evaluation.score_table import DifferenceRow, ResultRow, ScoreTable
from scope_selfplay.evaluation.strengths import JudgedPair
from scope_selfplay.evaluation.win_rates import PairVerdict, WinRate, pair_marks, win_rates
from scope_selfplay.schemas import Value


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
    loaded: LoadedBenchmark,
    checkpoints: Sequence[str],
    facts: Iterable[AnswerFacts],
    scores: Iterable[AnswerScore],
    comparisons: Iterable[PairVerdict] = (),
    *,
    seed: int,
    resamples: int = 2000,
) -> EvaluationResult:
    """`checkpoints` in the order of the report; Elo counts from the first."""
    table = ScoreTable(loaded, scores, seed=seed, resamples=resamples)
    known = sorted(facts, key=lambda each: (each.item_id, each.sample))
    met = sorted(comparisons, key=_place)
    return EvaluationResult(
        benchmark=loaded.name,
        title=loaded.benchmark.title,
        identity=loaded.identity,
        items=len(loaded.items),
        samples=loaded.benchmark.decoding.samples,
        scorer=table.scorer,
        checkpoints=tuple(checkpoints),
        rows=tuple(row for name in checkpoints for row in table.rows(name)),
        differences=tuple(
            row
            for earlier, later in combinations(checkpoints, 2)
            for row in table.differences(later, earlier)
        ),
        behaviour=tuple(
            behaviour_of(name, known, table.scores, seed=seed, resamples=resamples) for name in checkpoints
        ),
        wins=tuple(win_rates(met, checkpoints, seed=seed, resamples=resamples)),
        elo={
            judge: elo_ratings(pairs, checkpoints, seed=seed, resamples=resamples)
            for judge, pairs in _by_judge(met).items()
        },
        agreement=tuple(agreements((*table.marks(), *pair_marks(met)))),
    )


def _by_judge(met: Iterable[PairVerdict]) -> dict[str, list[JudgedPair]]:
    found: dict[str, list[JudgedPair]] = defaultdict(list)
    for verdict in met:
        if verdict.criterion is None and (pair := verdict.judged) is not None:
            found[verdict.judge].append(pair)
    pooled = [pair for own in found.values() for pair in own]
    return {ALL_JUDGES: pooled, **found} if len(found) > 1 else dict(found)


def _place(met: PairVerdict) -> tuple[str, str, str, str, int]:
    return (met.judge, met.item_id, met.first, met.second, -1 if met.criterion is None else met.criterion)
