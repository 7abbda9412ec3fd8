"""`ratings.json` of an iteration: held-out scores of every checkpoint, ratings from their comparisons, the comparison
graph, and whether the newest Solver is promoted. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from scope_selfplay.config import CompareConfig
from scope_selfplay.evaluation.held_out import Answered, breakdown, score_gains
from scope_selfplay.evaluation.pairings import CheckpointAnswers
from scope_selfplay.evaluation.rating import decide_promotion
from scope_selfplay.evaluation.strengths import JudgedPair, Strengths
from scope_selfplay.schemas import Candidate, Comparison, Task, Value
from scope_selfplay.store.ratings import CheckpointPair, Ratings, ScoreEstimate


class CheckpointNode(Value):
    """A checkpoint; its rating is how far it lies above the first one, and `promoted` says that training went on from
    it."""

    name: str
    rating: float | None
    low: float | None
    high: float | None
    promoted: bool


class CheckpointGraph(Value):
    """Checkpoints as nodes, and what the judge said between two of them as an edge."""

    nodes: tuple[CheckpointNode, ...]
    edges: tuple[CheckpointPair, ...]


def rate(
    candidates: Sequence[Candidate],
    contestants: Sequence[CheckpointAnswers],
    comparisons: Sequence[Comparison],
    *,
    starts: Sequence[str],
    settings: CompareConfig,
    seed: int,
    family: Callable[[Task], str],
) -> Ratings:
    """`contestants` are S_0 to S_t; `starts` names the checkpoints that iterations 1 to t were trained from.

    `family` names the kind of task that scores are reported by.
    """
    resamples = settings.resamples
    names = [contestant.name for contestant in contestants]
    answered_by = _authors(contestants)
    strengths = Strengths(_judged_pairs(comparisons, answered_by), seed=seed, resamples=resamples)
    scores = score_gains(contestants, seed=seed, resamples=resamples)
    ruling = decide_promotion(
        settings, starts, scores if settings.evidence == "scores" else strengths.difference
    )
    above = {name: strengths.difference(name, names[0]) for name in names}
    rated = {name: difference for name, difference in above.items() if difference is not None}
    gain = scores(names[-1], starts[-1]) if starts else None
    return Ratings(
        decision=ruling.decision,
        promoted=ruling.promoted,
        reason=ruling.reason,
        starts=tuple(starts),
        gain=None
        if gain is None
        else ScoreEstimate(mean_score=gain.value, low=gain.low, high=gain.high, tasks=gain.tasks),
        rating_gain=strengths.difference(names[-1], starts[-1]) if starts else None,
        ratings={name: difference.value for name, difference in rated.items()},
        intervals={name: (difference.low, difference.high) for name, difference in rated.items()},
        position_offset=strengths.offset,
        edges=tuple(_pairs_that_met(names, comparisons, answered_by)),
        held_out={
            contestant.name: breakdown(
                _answered(candidates, contestant), seed=seed, resamples=resamples, family=family
            )
            for contestant in contestants
        },
    )


def comparison_graph(ratings: Ratings) -> CheckpointGraph:
    """What a viewer draws: every checkpoint with its rating, and every pair that met."""
    nodes, newest = [], f"S_{len(ratings.starts)}"
    for name in ratings.held_out:
        low, high = ratings.intervals.get(name, (None, None))
        is_used = name in ratings.starts or (name == newest and ratings.promoted)
        nodes.append(
            CheckpointNode(name=name, rating=ratings.ratings.get(name), low=low, high=high, promoted=is_used)
        )
    return CheckpointGraph(nodes=tuple(nodes), edges=ratings.edges)


def _answered(candidates: Sequence[Candidate], contestant: CheckpointAnswers) -> list[Answered]:
    return [
        Answered(candidate, contestant.grades[candidate.task.id])
        for candidate in candidates
        if candidate.task
    ]


def _authors(contestants: Iterable[CheckpointAnswers]) -> dict[str, tuple[str, str]]:
    """Rollout id -> (checkpoint, task id)."""
    return {
        rollout.id: (contestant.name, task)
        for contestant in contestants
        for task, rollout in contestant.rollouts.items()
    }


def _judged_pairs(
    comparisons: Iterable[Comparison], answered_by: Mapping[str, tuple[str, str]]
) -> list[JudgedPair]:
    """Every comparison that has an outcome."""
    return [
        JudgedPair(
            answered_by[comparison.first_id][1],
            answered_by[comparison.first_id][0],
            answered_by[comparison.second_id][0],
            comparison.outcome,
            asked=comparison.verdict.attempts > 0,
        )
        for comparison in comparisons
        if comparison.outcome is not None
    ]


def _pairs_that_met(
    names: Sequence[str], comparisons: Iterable[Comparison], answered_by: Mapping[str, tuple[str, str]]
) -> list[CheckpointPair]:
    """In the order of `names` (oldest first)."""
    meetings: dict[tuple[str, str], list[tuple[Comparison, bool]]] = {}
    for comparison in comparisons:
        first, second = answered_by[comparison.first_id][0], answered_by[comparison.second_id][0]
        newer_first = names.index(first) > names.index(second)
        pair = (second, first) if newer_first else (first, second)
        meetings.setdefault(pair, []).append((comparison, newer_first))
    ordered = sorted(meetings, key=lambda pair: (names.index(pair[0]), names.index(pair[1])))
    return [_pair(older, newer, meetings[older, newer]) for older, newer in ordered]


def _pair(older: str, newer: str, met: Sequence[tuple[Comparison, bool]]) -> CheckpointPair:
    known = [(comparison, newer_first) for comparison, newer_first in met if comparison.outcome is not None]
    margins = [
        (comparison.outcome.first - comparison.outcome.second) * (1 if newer_first else -1)
        for comparison, newer_first in known
        if comparison.outcome is not None
    ]
    asked = [newer_first for comparison, newer_first in known if comparison.verdict.attempts]
    return CheckpointPair(
        older=older,
        newer=newer,
        wins=sum(margin > 0 for margin in margins),
        ties=sum(margin == 0 for margin in margins),
        losses=sum(margin < 0 for margin in margins),
        equal=len(known) - len(asked),
        failed=len(met) - len(known),
        newer_first=sum(asked),
        mean_margin=sum(margins) / len(margins) if margins else None,
    )
