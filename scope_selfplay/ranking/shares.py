"""Shares and the Bradley-Terry fit over them (Reasoning Arena, equations 7 and 10).

A share is how much of a match goes to the first entrant, in [0, 1]; the second gets the rest.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import Strengths

Floats = NDArray[np.float64]

# A full Newton step of this reach leaves an error of about its square.
_LAST_REACH = 1e-5
_MOST_STEPS = 200
_MANY_GROUPS = 64


GAMMA = 0.9
"""What a won match is worth (Reasoning Arena, section 5)."""


def soft_share(outcome: Outcome, gamma: float = GAMMA) -> float:
    """gamma for a win, one half for a tie, 1 - gamma for a loss of the first (equation 7).

    Raises ValueError unless gamma is in (1/2, 1].
    """
    if not 0.5 < gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}; the share of a won match is above 1/2 and at most 1")
    if outcome.first == outcome.second:
        return 0.5
    return gamma if outcome.first > outcome.second else 1 - gamma


def bradley_terry(n: int, shares: Sequence[tuple[int, int, float]], *, ridge: float = 1.0) -> Strengths:
    """Log-strengths of n entrants from (first, second, share of the first) triples; they sum to 0.

    Minimises equation 10: the cross-entropy of every share and of its mirror, plus ridge/2 * |beta|^2; exact
    to 1e-9 at the paper's ridge of 1. The penalty keeps an undefeated entrant finite and ties loose parts of
    the comparison graph together. An entrant without a share is None. Raises ValueError for a share outside
    [0, 1] or a ridge <= 0.
    """
    won = np.zeros((1, n, n))
    for first, second, share in shares:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"the share of {first} against {second} is {share}; a share is between 0 and 1")
        won[0, first, second] += share
        won[0, second, first] += 1 - share
    beta = bradley_terry_batch(won, ridge=ridge)[0]
    judged = {entrant for first, second, _ in shares for entrant in (first, second)}
    return [float(beta[entrant]) if entrant in judged else None for entrant in range(n)]


def bradley_terry_batch(won: Floats, *, ridge: float = 1.0) -> Floats:
    """The same fit for many groups at once: log-strengths (groups, n).

    `won` (groups, n, n): the sum of the shares that entrant i took from entrant j; sums are all that the
    objective depends on. Smaller groups are padded with zeros; an entrant without matches gets 0. Raises
    ValueError for entries that are negative or not numbers, and for a ridge <= 0.

    Newton's method. With d the largest change of a difference of two strengths, a step longer than d = 1 is
    cut to log(1 + d)/d of its length: the logistic loss is generalised self-concordant, so that every step
    descends, from any start and without a line search, and full steps converge quadratically.
    """
    if ridge <= 0:
        raise ValueError(f"ridge is {ridge}; only a positive one keeps an undefeated entrant finite")
    if not (won >= 0).all():
        raise ValueError("an entry of `won` is negative or not a number; sums of shares are neither")
    if not won.size:
        return np.zeros(won.shape[:2])
    # Groups come last, so that every operation below runs along them.
    taken = np.ascontiguousarray(won.transpose(1, 2, 0), dtype=np.float64)
    games, diagonal = taken + taken.transpose(1, 0, 2), np.arange(len(taken))
    beta = np.zeros((won.shape[1], won.shape[0]))
    for _ in range(_MOST_STEPS):
        worth = np.exp(beta - beta.max(axis=0))
        chance = worth[:, None] / (worth[:, None] + worth)
        expected = games * chance
        # Every match counts twice, once as its mirror.
        slope = 2.0 * (taken - expected).sum(axis=1) - ridge * beta
        curve = 2.0 * expected * (chance - 1.0)
        curve[diagonal, diagonal] = ridge - curve.sum(axis=1)
        step = _solve(curve, slope)
        reach = np.ptp(step, axis=0)
        beta += step * np.where(reach > 1.0, np.log1p(reach) / np.maximum(reach, 1.0), 1.0)
        if reach.max() < _LAST_REACH:
            return beta.T
    raise AssertionError(f"no Bradley-Terry optimum after {_MOST_STEPS} Newton steps at ridge {ridge}")


def _solve(curve: Floats, slope: Floats) -> Floats:
    """Solves (n, n, groups) positive definite systems; both arguments are used up.

    For many groups by elimination, whose loops run along the groups: three times as fast as LAPACK, which
    numpy calls once per group.
    """
    if slope.shape[1] < _MANY_GROUPS:
        solved = np.linalg.solve(curve.transpose(2, 0, 1), slope.T[:, :, None])
        return np.asarray(solved[:, :, 0].T, dtype=np.float64)
    n = len(curve)
    for pivot in range(n):
        rest = slice(pivot + 1, n)
        factor = curve[rest, pivot] / curve[pivot, pivot]
        curve[rest, rest] -= factor[:, None] * curve[pivot, rest]
        slope[rest] -= factor * slope[pivot]
    for pivot in reversed(range(n)):
        rest = slice(pivot + 1, n)
        slope[pivot] -= (curve[pivot, rest] * slope[rest]).sum(axis=0)
        slope[pivot] /= curve[pivot, pivot]
    return slope
