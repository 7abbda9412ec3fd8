"""Stage D's verdict: held-out scores of every checkpoint, ratings from their comparisons, and what goes on."""

from collections.abc import Sequence

import numpy as np

from scope_selfplay.config import CompareConfig
from scope_selfplay.evaluation.held_out import Answered, bootstrap, breakdown
from scope_selfplay.evaluation.pairings import CheckpointAnswers, Presentation
from scope_selfplay.evaluation.promotion import Gain, rule
from scope_selfplay.evaluation.rating import (
    CheckpointNode,
    ComparisonGraph,
    edges,
    judged,
    owners,
)
from scope_selfplay.evaluation.strengths import Strengths
from scope_selfplay.judge import Judge, Style
from scope_selfplay.schemas import Candidate, Comparison, Outcome, Verdict
from scope_selfplay.store.ratings import CheckpointDifference, Ratings, ScoreEstimate


async def judge_presentation(judge: Judge, candidate: Candidate, shown: Presentation) -> Comparison:
    """One comparison in the order shown; equal answers tie without a call."""
    assert candidate.task is not None
    if shown.is_tie:
        verdict = Verdict(value=True, reasoning="both give the same answer", attempts=0)
        return Comparison(
            first_id=shown.first.id, second_id=shown.second.id, outcome=Outcome(0.5, 0.5), verdict=verdict
        )
    return await judge.compare(
        candidate.task,
        shown.first,
        shown.second,
        style=Style.SCORES,
        rubric=candidate.rubric,
        reference=candidate.task.reference,
    )


def rate(
    candidates: Sequence[Candidate],
    contestants: Sequence[CheckpointAnswers],
    comparisons: Sequence[Comparison],
    *,
    starts: Sequence[str],
    settings: CompareConfig,
    seed: int,
) -> Ratings:
    """`contestants` are S_0 to S_t; `starts` names the checkpoints that iterations 1 to t were trained from."""
    owner, names = owners(contestants), [each.name for each in contestants]
    strengths = Strengths(judged(comparisons, owner), seed=seed, resamples=settings.resamples)
    scores = _score_gain(contestants, seed, settings.resamples)
    ruling = rule(settings, starts, scores if settings.evidence == "scores" else strengths.difference)
    above = {name: strengths.difference(name, names[0]) for name in names}
    rated = {name: found for name, found in above.items() if found is not None}
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
        ratings={name: found.value for name, found in rated.items()},
        intervals={name: (found.low, found.high) for name, found in rated.items()},
        position_offset=strengths.offset,
        edges=tuple(edges(names, comparisons, owner)),
        held_out={each.name: _held_out(candidates, each, seed, settings.resamples) for each in contestants},
    )


def comparison_graph(ratings: Ratings) -> ComparisonGraph:
    """What a viewer draws: every checkpoint with its rating, and every pair that met."""
    nodes, newest = [], f"S_{len(ratings.starts)}"
    for name in ratings.held_out:
        low, high = ratings.intervals.get(name, (None, None))
        is_used = name in ratings.starts or (name == newest and ratings.promoted)
        nodes.append(
            CheckpointNode(name=name, rating=ratings.ratings.get(name), low=low, high=high, promoted=is_used)
        )
    return ComparisonGraph(nodes=tuple(nodes), edges=ratings.edges)


def _held_out(
    candidates: Sequence[Candidate], each: CheckpointAnswers, seed: int, resamples: int
) -> dict[str, ScoreEstimate]:
    answered = [
        Answered(candidate, each.grades[candidate.task.id]) for candidate in candidates if candidate.task
    ]
    return breakdown(answered, seed=seed, resamples=resamples)


def _score_gain(contestants: Sequence[CheckpointAnswers], seed: int, resamples: int) -> Gain:
    """Differences of held-out scores, paired by task; a missing score leaves its task out."""
    grades = {each.name: each.grades for each in contestants}

    def gain(new: str, old: str) -> CheckpointDifference | None:
        pairs = [(grade.score, grades[old][task].score) for task, grade in grades[new].items()]
        differences = [one - other for one, other in pairs if one is not None and other is not None]
        if not differences:
            return None
        low, high = bootstrap(differences, seed=seed, resamples=resamples)
        value = float(np.mean(differences))
        return CheckpointDifference(value=value, low=low, high=high, tasks=len(differences))

    return gain
