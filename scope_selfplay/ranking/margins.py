"""Ridge least squares over score margins, with one position offset: the fit behind `balanced`.

The model of one judged match: margin = strength of the first - strength of the second + offset + noise.
What a whole step knows about the judge, its offset and the level of its scores, is best estimated over
all groups (`judge_effects`) before every group is fitted again with it.
"""

import math
import random
from collections.abc import Sequence

import numpy as np

from scope_selfplay.ranking.circulant import balanced_matches
from scope_selfplay.ranking.margins import Equations, Floats, equations
from scope_selfplay.ranking.matches import Match, Strengths, Topology
from scope_selfplay.schemas import Outcome

_RIDGES = np.logspace(-6, 1, 29)
_TYPICAL_RIDGE = 2.0


def balanced(n: int, calls: int, rng: random.Random, *, offset: float | None = None) -> Topology:
    """One wave of `balanced_matches`, fitted by `fit_margins`. Raises ValueError for fewer than n-1 calls."""
    matches = balanced_matches(n, calls, rng)
    outcomes = yield matches
    return fit_margins(n, matches, outcomes, offset=offset)


def fit_margins(
    n: int,
    matches: Sequence[Match],
    outcomes: Sequence[Outcome | None],
    *,
    ridge: float | None = None,
    offset: float | None = None,
    level: float = 0.0,
) -> Strengths:
    """Strengths on the scale of the margins; they sum to 0 within each connected part of the graph.

    Minimises the squared residuals plus ridge * |strengths|^2. `ridge` is the variance of a margin's
    noise over that of the strengths. By default the margins themselves decide it, by their marginal
    likelihood: a judge without noise is fitted exactly, and the noisier it is the more a thinly compared
    entrant is drawn to the middle. Without an offset one is fitted along, shrunk towards 0 by the same
    ridge. `level` is the weight of the sum of a call's two scores against their difference: 0 for scores
    that compare within a call only, otherwise what `score_level` finds. Matches without verdict are left
    out, and an entrant left without any is None. Raises ValueError for a ridge <= 0 or a negative level.
    """
    if level < 0.0:
        raise ValueError(f"level is {level}; the weight of the sums is at least 0")
    known = equations(n, matches, outcomes)
    design, target = _stacked(known, offset, level)
    if ridge is None:
        ridge = _likeliest_ridge(design, target)
    strengths = ridge_solution(design, design.T @ target, ridge)
    seen = set(known.entrants)
    return [float(strengths[entrant]) if entrant in seen else None for entrant in range(n)]


def ridge_solution(design: Floats, target: Floats, ridge: float) -> Floats:
    """Solves (design' design + ridge) x = target. Raises ValueError for a ridge <= 0."""
    if ridge <= 0:
        raise ValueError(
            f"ridge is {ridge}; only a positive one gives every comparison graph a single solution"
        )
    normal = design.T @ design + ridge * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(normal, target), dtype=np.float64)


def _stacked(known: Equations, offset: float | None, level: float) -> tuple[Floats, Floats]:
    """All equations, with noise of one variance; a free offset is the last column."""
    design, target = known.contrasts, known.margins - (offset or 0.0)
    if offset is None:
        design = np.column_stack([design, np.ones(len(target))])
    if level > 0.0:
        totals = np.zeros_like(design)
        totals[:, : known.totals.shape[1]] = known.totals
        design = np.vstack([design, math.sqrt(level) * totals])
        target = np.concatenate([target, math.sqrt(level) * known.sums])
    return design, target


def _likeliest_ridge(design: Floats, target: Floats) -> float:
    """The ridge of the grid with the highest marginal likelihood, the noise level profiled out.

    target ~ N(0, noise * (I + design design' / ridge)), evaluated through the eigenvalues of design' design.
    """
    scale = float(target @ target)
    if scale == 0.0:
        return _TYPICAL_RIDGE
    eigenvalues, vectors = np.linalg.eigh(design.T @ design)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    along = vectors.T @ (design.T @ target)
    unexplained = 1.0 - (along**2 / (eigenvalues + _RIDGES[:, None])).sum(axis=1) / scale
    fit = len(target) * np.log(np.maximum(unexplained, 1e-12))
    return float(_RIDGES[np.argmin(fit + np.log1p(eigenvalues / _RIDGES[:, None]).sum(axis=1))])
