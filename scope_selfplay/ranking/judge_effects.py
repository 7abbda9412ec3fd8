"""What the comparisons of a whole step say about the judge, whatever the entrants: its position offset, and
how far its scores compare from one call to another. `fit_step` fits all groups of the step with both.

Groups are given as (matches, outcomes), as in the graph of a play.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from scope_selfplay.ranking.margins import Floats, equations, fit_margins, ridge_solution, width
from scope_selfplay.ranking.matches import Match, Strengths
from scope_selfplay.schemas import Outcome

Group = tuple[Sequence[Match], Sequence[Outcome | None]]

_TYPICAL_RIDGE = 2.0


def fit_step(sizes: Sequence[int], groups: Sequence[Group], *, levels: bool = True) -> list[Strengths]:
    """`fit_margins` for every group of a step, of so many entrants each, with the judge's effects pooled over all.

    `levels`: an entrant's strength also owes to how high the sums of its calls are, as far as the step shows that
    these compare (`score_level`); for verdicts without a level, preferences, that is not at all.
    """
    offset = position_offset(groups)
    level = score_level(groups, offset=offset) if levels else 0.0
    return [
        fit_margins(size, *group, offset=offset, level=level)
        for size, group in zip(sizes, groups, strict=True)
    ]


def position_offset(groups: Iterable[Group], *, ridge: float = _TYPICAL_RIDGE) -> float:
    """What being shown first is worth, in units of the margin.

    Generalised least squares with the strengths of every group as random effects, whose variance is
    1/ridge of the noise's. The estimate is unbiased whatever the ridge; the default suits a realistic
    judge and only bears on plans that are not counterbalanced. 0.0 when nothing was judged. Raises
    ValueError for a ridge <= 0.
    """
    pull = weight = 0.0
    for matches, outcomes in groups:
        known = equations(width(matches), matches, outcomes)
        contrasts = known.contrasts
        # The ones, less what the strengths of the group can explain of them.
        unexplained = 1.0 - contrasts @ ridge_solution(contrasts, contrasts.sum(axis=0), ridge)
        pull += float(unexplained @ known.margins)
        weight += float(unexplained.sum())
    return pull / weight if weight else 0.0


def score_level(groups: Iterable[Group], *, offset: float = 0.0) -> float:
    """How much the sum of a call's two scores says about the entrants, against their difference; in [0, 1].

    1 for a judge whose scores compare from call to call as well as within one, less the more the level
    of a call varies, and 0 where sums say nothing, as for logits or win probabilities. It is the
    recovery of inter-block information (Yates, 1940) with calls as blocks of two, its variances pooled
    over the groups: strengths are fitted to the margins alone, sums are regressed on them, and both
    steps are corrected for the noise of that fit. Too few comparisons to tell give 0.0.
    """
    totals = sum((_moments(*group, offset) for group in groups), start=np.zeros(7))
    residual, freedom, product, fitted, error, power, count = map(float, totals)
    noise = residual / freedom if freedom >= 1.0 else 0.0
    signal = fitted - noise * error
    if noise <= 0.0 or signal <= 0.0:
        return 0.0
    # Around the sums that the strengths predict, not around the regression: sums that are as good as
    # constant leave nothing unexplained by a slope of nearly 0, and would get all the weight.
    slope, unexplained = product / signal, (power - 2.0 * product + signal) / count
    return min(max(slope * noise / unexplained, 0.0), 1.0) if unexplained > 0.0 else 0.0


def _moments(matches: Sequence[Match], outcomes: Sequence[Outcome | None], offset: float) -> Floats:
    """Of one group: squared residuals of the margins and their degrees of freedom; the sums' product with
    what the strengths make of them, the square of that, its part per unit of noise; the sums' square,
    and their number.
    """
    known = equations(width(matches), matches, outcomes)
    margins = known.margins - offset
    inverse = np.linalg.pinv(known.contrasts.T @ known.contrasts, hermitian=True)
    strengths = inverse @ (known.contrasts.T @ margins)
    explained = known.totals @ strengths
    residual = margins - known.contrasts @ strengths
    freedom = len(margins) - np.trace(inverse @ known.contrasts.T @ known.contrasts)
    error = np.trace(known.totals @ inverse @ known.totals.T)
    return np.array(
        [
            residual @ residual,
            freedom,
            known.sums @ explained,
            explained @ explained,
            error,
            known.sums @ known.sums,
            max(len(margins) - 1, 0),
        ]
    )
