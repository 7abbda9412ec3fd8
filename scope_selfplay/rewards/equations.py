"""Turns judgements and counts into rewards: the equations of SCOPE and of the baselines it is compared with.

Plain functions of numbers: no text, no tokens, no randomness. `None` is a missing judgement; it is
carried through to the caller and never becomes a number. A value that no run can produce is
our own bug and raises ValueError. Defaults are those of SCOPE Table 9; numbers after "Tournament-GRPO" are
equations of that paper.
"""

import math
from collections.abc import Sequence

from scope_selfplay.base.values import Criterion, Priority
from scope_selfplay.config.training import ChallengerConfig, SolverConfig

# Means of exact fractions may miss a bound in their last bits; 0.2 eight times is still inside [0.2, 0.8].
TOLERANCE = 1e-9


def rubric_score(met: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """Weighted share of the criteria that an answer meets, in [0, 1] (SCOPE equation 1).

    `met` has one entry per criterion: True or False, None where the verdict is missing, or a probability in
    [0, 1] where grading is soft. Missing entries are left out and the other weights renormalised. None when
    every criterion that carries weight is missing. `weights` default to 1 each.

    Raises ValueError for a verdict outside [0, 1], or weights of another length.
    """
    weights = [1.0] * len(met) if weights is None else weights
    judged = [
        (weight, _unit("verdict", value))
        for weight, value in zip(weights, met, strict=True)
        if value is not None
    ]
    total = math.fsum(weight for weight, _ in judged)
    if total == 0.0:
        return None
    return math.fsum(weight * value for weight, value in judged) / total


def difficulty_reward(mean: float, target: float = 0.5) -> float:
    """1 where the Solver's mean rubric score hits the target, falling linearly to 0 (SCOPE equation 5).

    `mean` in [0, 1]; `target` is tau, strictly between 0 and 1. The nearer of the two ends of [0, 1] gives 0,
    and so does everything as far away on the other side. Raises ValueError for another mean.
    """
    return max(0.0, 1.0 - abs(_unit("mean", mean) - target) / min(target, 1.0 - target))


def length_factor(tokens: int, soft: int = 1024, hard: int = 2048, floor: float = 0.05) -> float:
    """What a long answer keeps of its rubric score, in [floor, 1] (SCOPE equation 7).

    1 up to `soft` tokens, half a cosine wave down to `floor` at `hard`, `floor` from there on. All lengths
    are tokens of the answer alone. A floor of 1 switches the penalty off.
    """
    if tokens <= soft:
        return 1.0
    if tokens >= hard:
        return floor
    return floor + (1.0 - floor) / 2.0 * (1.0 + math.cos(math.pi * (tokens - soft) / (hard - soft)))


def search_reward(searches: int) -> float:
    """Valid searches of all turns, the last included, over 3 (Table 9); at most 1 (SCOPE appendix F.2)."""
    return min(1.0, searches / 3)


def challenger_format(
    thinking_turns: int, turns: int, searches: int, expected_searches: int, has_task: bool
) -> float:
    """How well a Challenger kept the protocol, in [0, 1] (SCOPE appendix F.1).

    Mean of three parts: the share of turns with a closed thinking block, the valid searches over the expected
    ones (at most 1), and whether the last turn holds a well-formed task.
    """
    return (thinking_turns / turns + min(1.0, searches / expected_searches) + float(has_task)) / 3.0


def solver_format(thinking_turns: int, turns: int, searches_before_last: int, has_answer: bool) -> float:
    """How well a Solver kept the protocol, in [0, 1] (SCOPE appendix F.2).

    Mean of three parts: the share of turns with a closed thinking block, the valid searches of the turns
    before the last over the number of those turns (at most 1), and whether the last turn holds a closed
    answer. With a single turn the middle part divides by zero in the paper; nothing was searched, so it is
    0 here.
    """
    tool = min(1.0, searches_before_last / (turns - 1)) if turns > 1 else 0.0
    return (thinking_turns / turns + tool + float(has_answer)) / 3.0


def challenger_reward(format: float, mean: float | None, settings: ChallengerConfig) -> float:
    """Weighted format, plus difficulty for a task that passed the gates (SCOPE equation 4, lambda_diff 1).

    A format of 0 gives 0 in total (appendix F.1), whatever else is known. `mean` is the Solver's mean rubric score on
    the task, None where a gate failed. Raises ValueError for a format or mean outside [0, 1].
    """
    if _unit("format", format) == 0.0:
        return 0.0
    difficulty = 0.0 if mean is None else difficulty_reward(mean, settings.target)
    return settings.format_weight * format + difficulty


def frontier_reward(format: float, right: float | None, alike: float, settings: ChallengerConfig) -> float:
    """Weighted format; plus, for a task that passed its gates, four times the variance of the Solver's tries less the
    share `alike` of the other tasks that ask alike, at least 0.

    `right` is the share p of right tries, None where a gate failed. p(1-p) is most where half are right: SPICE rewards
    this variance, Absolute Zero and Dr. Zero what is neither always nor never solved. Repetition is
    subtracted, down to 0, as in R-Zero, which tells it by clusters of BLEU. Raises ValueError outside [0, 1].
    """
    if _unit("format", format) == 0.0:
        return 0.0
    learnt = 0.0 if right is None else 4.0 * _unit("right", right) * (1.0 - right) - _unit("alike", alike)
    return settings.format_weight * format + max(0.0, learnt)


def solver_reward(
    score: float | None, answer_tokens: int, format: float, search: float, settings: SolverConfig
) -> float | None:
    """Length-controlled rubric score, weighted format and search (SCOPE equation 6, lambda_acc 1).

    `score`, `format` and `search` lie in [0, 1]. None when the score is missing: a failed judge must not look like a
    bad answer. Raises ValueError for values out of range.
    """
    limits = (settings.length_soft, settings.length_hard, settings.length_floor)
    protocol = settings.format_weight * _unit("format", format) + settings.search_weight * _unit(
        "search", search
    )
    return None if score is None else length_factor(answer_tokens, *limits) * _unit("score", score) + protocol


def in_window(mean: float, low: float = 0.2, high: float = 0.8) -> bool:
    """Whether a task of this mean rubric score is kept; both ends belong to the window (SCOPE section 3.1).

    Compares with a tolerance of 1e-9. Raises ValueError for a mean outside [0, 1].
    """
    return low - TOLERANCE <= _unit("mean", mean) <= high + TOLERANCE


def group_advantages(rewards: Sequence[float | None], epsilon: float = 1e-6) -> list[float]:
    """Rewards of one group, centred and divided by their population std plus `epsilon` (SCOPE equation 2).

    Missing rewards stay out of mean and std and get 0. A group whose known rewards are all equal gives exact
    zeros. With epsilon 0 the squares of the advantages sum to the number of known rewards (appendix D).
    Raises ValueError for a reward that is not finite.
    """
    known = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in known):
        raise ValueError(f"rewards must be finite or None; got {list(rewards)}")
    return [value or 0.0 for value in _standardised(rewards, epsilon, ddof=0)]


def implicit_reward(score: float, format: float) -> float:
    """A tenth of an overall score from 0 to 10, plus the format reward (Tournament-GRPO, 11-12)."""
    return _unit("a tenth of the score", score / 10.0) + _unit("format", format)


def explicit_reward(scores: Sequence[float | None], weights: Sequence[float], format: float) -> float | None:
    """Half the weighted mean of per-rubric scores, half the format reward (Tournament-GRPO, 13-14).

    `scores` lie in [0, 1], one per weight; None is a missing one, which is left out. None when every criterion that
    carries weight is missing. Raises ValueError as `rubric_score` does.
    """
    rubric = rubric_score(scores, weights)
    return None if rubric is None else 0.5 * rubric + 0.5 * _unit("format", format)


def criterion_weights(criteria: Sequence[Criterion]) -> list[float]:
    """The criteria's weights in the designs that score each: their own, or by priority where all of those are equal."""
    own = [criterion.weight for criterion in criteria]
    return own if len(set(own)) > 1 else [priority_weight(criterion.priority) for criterion in criteria]


def summed_objectives(
    objectives: Sequence[Sequence[float | None]], weights: Sequence[float], epsilon: float = 1e-4
) -> list[float | None]:
    """Rewards of one group from several objectives, each a row of one value per rollout (GDPO).

    An objective is centred and divided by its sample std in the group plus `epsilon` (TRL's), and then weighted: a wide
    one does not drown a narrow one. A missing value is left out of its objective and its weight out of the rollout's;
    None for a rollout without any value. Raises ValueError for lengths that differ.
    """
    rows = [_standardised(values, epsilon, ddof=1) for values in objectives]
    totals: list[float | None] = []
    for column in zip(*rows, strict=True):
        known = [(value, weight) for value, weight in zip(column, weights, strict=True) if value is not None]
        share = math.fsum(weight for _, weight in known)
        totals.append(math.fsum(value * weight for value, weight in known) / share if share else None)
    return totals


def _standardised(values: Sequence[float | None], epsilon: float, *, ddof: int) -> list[float | None]:
    known = [value for value in values if value is not None]
    if not known or min(known) == max(known):
        return [None if value is None else 0.0 for value in values]
    mean = math.fsum(known) / len(known)
    squares = math.fsum((value - mean) ** 2 for value in known)
    spread = math.sqrt(squares / (len(known) - ddof)) + epsilon
    # Values closer together than the square root of the smallest float have no spread left to divide by.
    return [None if value is None else (value - mean) / spread if spread else 0.0 for value in values]


def priority_weight(priority: Priority) -> float:
    """The weight of a criterion in the designs that weight by priority (Tournament-GRPO appendix F)."""
    return {Priority.CRITICAL: 3.0, Priority.IMPORTANT: 2.0, Priority.BONUS: 1.0}[priority]


def pairwise_reward(share: float, format: float) -> float:
    """Share of the other entrants that an answer beats, plus the format reward (Tournament-GRPO, 15).

    A tie counts as half a win. Raises ValueError for values outside [0, 1].
    """
    return _unit("share of wins", share) + _unit("format", format)


def _unit(name: str, value: float) -> float:
    """The value, moved onto [0, 1] where it misses by rounding only."""
    if not -TOLERANCE <= value <= 1.0 + TOLERANCE:
        raise ValueError(f"{name} must lie in [0, 1]; got {value}")
    return min(1.0, max(0.0, value))
