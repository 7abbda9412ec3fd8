"""From strengths to rewards: order, min-max, ranks. None, never judged, stays None everywhere."""

from collections.abc import Sequence

from scope_selfplay.ranking.matches import Strengths


def min_max(scores: Sequence[float | None], epsilon: float = 1e-6) -> Strengths:
    """(s - min) / (max - min + epsilon), in [0, 1); equal scores give 0 for all (Tournament-GRPO eq. 8).

    The paper names an epsilon and no value; ours is 1e-6.
    """
    known = [score for score in scores if score is not None]
    if not known:
        return [None] * len(scores)
    low, span = min(known), max(known) - min(known) + epsilon
    return [None if score is None else (score - low) / span for score in scores]


def rank_rewards(strengths: Sequence[float | None]) -> Strengths:
    """1 - rank / (N - 1), rank 0 for the best, the mean rank for ties (ArenaRL, equation 6).

    N counts the judged entrants. If there is only one, it gets 0.5, what everybody gets when all are equal.
    """
    places = standing([None if strength is None else (strength,) for strength in strengths])
    rivals = sum(place is not None for place in places) - 1
    if rivals < 1:
        return [None if place is None else 0.5 for place in places]
    return [None if place is None else place / rivals for place in places]


def standing(keys: Sequence[tuple[float, ...] | None]) -> Strengths:
    """How many judged entrants each one is ahead of, ties counting half; a higher key is better."""
    ascending = sorted(key for key in keys if key is not None)
    below: dict[tuple[float, ...], int] = {}
    for place, key in enumerate(ascending):
        below.setdefault(key, place)
    return [None if key is None else below[key] + (ascending.count(key) - 1) / 2 for key in keys]
