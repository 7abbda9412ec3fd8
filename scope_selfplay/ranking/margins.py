"""Ridge least squares over score margins, with one position offset: the fit behind `balanced`.

The model of one judged match: margin = strength of the first - strength of the second + offset + noise. The
offset is what being shown first is worth to this judge. It is the same for all groups of a step, so it is
best pooled over them (`position_offset`) before every group is fitted again with it.
"""

import random
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.ranking.circulant import balanced_matches
from scope_selfplay.ranking.matches import Match, Strengths, Topology
from scope_selfplay.schemas import Outcome

Floats = NDArray[np.float64]

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
) -> Strengths:
    """Strengths on the scale of the margins; they sum to 0 within each connected part of the graph.

    Minimises the squared residuals plus ridge * |strengths|^2. `ridge` is the variance of a margin's noise
    over that of the strengths. By default the margins themselves decide it, by their marginal likelihood: a
    judge without noise is fitted exactly, and the noisier it is the more a thinly compared entrant is drawn
    to the middle. Without an offset one is fitted along, shrunk towards 0 by the same ridge. Matches
    without verdict are left out, and an entrant left without any is None. Raises ValueError for a ridge <=
    0.
    """
    judged = _judged(matches, outcomes)
    design, margins = _equations(n, judged)
    if offset is None:
        design = np.hstack([design, np.ones((len(judged), 1))])
    else:
        margins = margins - offset
    if ridge is None:
        ridge = _likeliest_ridge(design, margins)
    strengths = _ridge_solution(design, design.T @ margins, ridge)
    seen = {entrant for match, _ in judged for entrant in match}
    return [float(strengths[entrant]) if entrant in seen else None for entrant in range(n)]


def position_offset(
    groups: Iterable[tuple[Sequence[Match], Sequence[Outcome | None]]], *, ridge: float = _TYPICAL_RIDGE
) -> float:
    """What being shown first is worth, in units of the margin, pooled over groups of (matches, outcomes).

    Generalised least squares with the strengths of every group as random effects, whose variance is 1/ridge
    of the noise's. The estimate is unbiased whatever the ridge; the default suits a realistic judge and
    only bears on designs that are not counterbalanced. 0.0 when nothing was judged. Raises ValueError for a
    ridge <= 0.
    """
    pull = weight = 0.0
    for matches, outcomes in groups:
        judged = _judged(matches, outcomes)
        design, margins = _equations(1 + max((max(match) for match, _ in judged), default=-1), judged)
        # The ones, less what the strengths of the group can explain of them.
        unexplained = 1.0 - design @ _ridge_solution(design, design.sum(axis=0), ridge)
        pull += float(unexplained @ margins)
        weight += float(unexplained.sum())
    return pull / weight if weight else 0.0


def _judged(matches: Sequence[Match], outcomes: Sequence[Outcome | None]) -> list[tuple[Match, float]]:
    pairs = zip(matches, outcomes, strict=True)
    return [(match, outcome.first - outcome.second) for match, outcome in pairs if outcome is not None]


def _equations(n: int, judged: Sequence[tuple[Match, float]]) -> tuple[Floats, Floats]:
    """One row per judged match, +1 for the first and -1 for the second, and its margin."""
    design = np.zeros((len(judged), n))
    for row, (match, _) in enumerate(judged):
        design[row, match.first] += 1.0
        design[row, match.second] -= 1.0
    return design, np.array([margin for _, margin in judged], dtype=np.float64)


def _ridge_solution(design: Floats, target: Floats, ridge: float) -> Floats:
    if ridge <= 0:
        raise ValueError(
            f"ridge is {ridge}; only a positive one gives every comparison graph a single solution"
        )
    return np.asarray(
        np.linalg.solve(design.T @ design + ridge * np.eye(design.shape[1]), target), dtype=np.float64
    )


def _likeliest_ridge(design: Floats, margins: Floats) -> float:
    """The ridge of the grid with the highest marginal likelihood, the noise level profiled out.

    margins ~ N(0, noise * (I + design design' / ridge)), evaluated through the eigenvalues of design' design.
    """
    scale = float(margins @ margins)
    if scale == 0.0:
        return _TYPICAL_RIDGE
    eigenvalues, vectors = np.linalg.eigh(design.T @ design)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    along = vectors.T @ (design.T @ margins)
    unexplained = 1.0 - (along**2 / (eigenvalues + _RIDGES[:, None])).sum(axis=1) / scale
    fit = len(margins) * np.log(np.maximum(unexplained, 1e-12))
    return float(_RIDGES[np.argmin(fit + np.log1p(eigenvalues / _RIDGES[:, None]).sum(axis=1))])
