"""The batched Bradley-Terry fit against scipy's L-BFGS-B, group by group with vectorised gradients."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]

from scope_selfplay.ranking.shares import bradley_terry_batch

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]


class Speed(NamedTuple):
    """Seconds for all groups, and the largest difference of two strengths."""

    n: int
    matches: int
    oracle: float
    batch: float
    difference: float

    @property
    def ratio(self) -> float:
        return self.oracle / self.batch


def compare_speed(n: int, plan: list[tuple[int, int]], *, groups: int, seed: int, repeats: int = 5) -> Speed:
    """Fits random shares of the same matches in every group. The best of several runs counts for both."""
    first, second = (np.array(column) for column in zip(*plan, strict=True))
    shares = np.random.default_rng(seed).choice([0.1, 0.5, 0.9], size=(groups, len(plan)))
    oracle_time, expected = min(
        (_timed_oracle(n, first, second, shares) for _ in range(2)), key=lambda timed: timed[0]
    )
    batch_time, found = min(
        (_timed_batch(n, first, second, shares) for _ in range(repeats)), key=lambda timed: timed[0]
    )
    return Speed(n, len(plan), oracle_time, batch_time, float(np.abs(expected - found).max()))


def live_plan(n: int, seed: int) -> list[tuple[int, int]]:
    """As many matches as a live tournament has: everybody with up to three earlier ones."""
    rng = np.random.default_rng(seed)
    return [
        (newcomer, int(other))
        for newcomer in range(1, n)
        for other in rng.choice(newcomer, min(newcomer, 3), replace=False)
    ]


def round_robin_plan(n: int) -> list[tuple[int, int]]:
    return [(one, other) for one in range(n) for other in range(one + 1, n)]


def _timed_batch(n: int, first: Integers, second: Integers, shares: Floats) -> tuple[float, Floats]:
    start = time.perf_counter()
    won = np.zeros((len(shares), n, n))
    won[:, first, second] = shares
    won[:, second, first] = 1 - shares
    strengths = bradley_terry_batch(won)
    return time.perf_counter() - start, strengths


def _timed_oracle(n: int, first: Integers, second: Integers, shares: Floats) -> tuple[float, Floats]:
    start = time.perf_counter()
    fits = [_oracle(n, first, second, share) for share in shares]
    return time.perf_counter() - start, np.array(fits)


def _oracle(n: int, first: Integers, second: Integers, share: Floats) -> Floats:
    """Equation 10 with ridge 1; a match and its mirror are one term, twice."""

    def loss(beta: Floats) -> tuple[float, Floats]:
        gap = beta[first] - beta[second]
        terms = share * np.logaddexp(0, -gap) + (1 - share) * np.logaddexp(0, gap)
        pull = 2 * (1 / (1 + np.exp(-gap)) - share)
        slope = np.bincount(first, pull, n) - np.bincount(second, pull, n) + beta
        return float(2 * terms.sum() + beta @ beta / 2), slope

    # ftol far below the default, or L-BFGS-B stops at errors of 1e-5.
    options = {"ftol": 1e-15, "gtol": 1e-8}
    return np.asarray(minimize(loss, np.zeros(n), jac=True, method="L-BFGS-B", options=options).x)
