"""Stage D's verdict: held-out scores of every checkpoint, their pairwise comparisons, and what goes on."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from scope_selfplay.evaluation.held_out import Answered, Estimate, bootstrap, breakdown
from scope_selfplay.judge import Judge, Style
from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Value


@dataclass(frozen=True)
class Contestant:
    """One checkpoint's answers to the held-out tasks, by task id."""

    name: str
    rollouts: Mapping[str, Rollout]
    grades: Mapping[str, Grade]


class Ratings(Value):
    """`ratings` is the share of comparisons won (ties count half); `gain` is S_t minus S_{t-1}, paired by task."""

    promoted: bool
    gain: Estimate | None
    ratings: dict[str, float]
    held_out: dict[str, dict[str, Estimate]]


async def compare_checkpoints(
    judge: Judge, candidates: Sequence[Candidate], contestants: Sequence[Contestant]
) -> list[Comparison]:
    """Every pair of checkpoints on every held-out task."""
    calls = [
        judge.compare(
            candidate.task,
            first.rollouts[candidate.task.id],
            second.rollouts[candidate.task.id],
            style=Style.SCORES,
            rubric=candidate.rubric,
        )
        for candidate in candidates
        if candidate.task is not None
        for first, second in combinations(contestants, 2)
    ]
    return list(await asyncio.gather(*calls))


def rate(
    candidates: Sequence[Candidate],
    contestants: Sequence[Contestant],
    comparisons: Sequence[Comparison],
    *,
    always: bool,
    seed: int,
    resamples: int,
) -> Ratings:
    """The newest checkpoint is the last contestant; it is promoted `always`, or unless it is clearly worse."""
    held_out = {
        each.name: breakdown(
            [
                Answered(candidate, each.grades[candidate.task.id])
                for candidate in candidates
                if candidate.task
            ],
            seed=seed,
            resamples=resamples,
        )
        for each in contestants
    }
    gain = _gain(contestants[-2], contestants[-1], seed, resamples) if len(contestants) > 1 else None
    return Ratings(
        promoted=always or gain is None or gain.high >= 0,
        gain=gain,
        ratings=_win_shares(contestants, comparisons),
        held_out=held_out,
    )


def _gain(before: Contestant, after: Contestant, seed: int, resamples: int) -> Estimate | None:
    pairs = [(before.grades[task].score, after.grades[task].score) for task in after.grades]
    differences = [new - old for old, new in pairs if old is not None and new is not None]
    if not differences:
        return None
    low, high = bootstrap(differences, seed=seed, resamples=resamples)
    return Estimate(mean_score=float(np.mean(differences)), low=low, high=high, tasks=len(differences))


def _win_shares(contestants: Sequence[Contestant], comparisons: Sequence[Comparison]) -> dict[str, float]:
    owner = {rollout.id: each.name for each in contestants for rollout in each.rollouts.values()}
    shares: dict[str, list[float]] = {each.name: [] for each in contestants}
    for comparison in comparisons:
        if comparison.outcome is None:
            continue
        first, second = comparison.outcome
        share = 0.5 if first == second else float(first > second)
        shares[owner[comparison.first_id]].append(share)
        shares[owner[comparison.second_id]].append(1 - share)
    return {name: float(np.mean(won)) for name, won in shares.items() if won}
