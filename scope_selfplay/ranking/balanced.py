"""Ridge least squares over score margins, with one position offset: the fit behind `balanced`.

The model of one judged match: margin = strength of the first - strength of the second + offset + noise; and the sum of
its scores is the sum of both strengths plus a level that is the same for all matches of the group. What a whole step
knows about the judge, its offset and how far its scores compare from one call to another, is estimated over all groups
before every group is fitted again with both (`fit_step`). Groups are (matches, outcomes), as in the graph of a play.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import Match, Strengths, Topology, all_pairs, counterbalanced

Item = TypeVar("Item")

Pair = tuple[int, int]
"""Two entrants, the lower number first."""


def balanced_matches(n: int, calls: int, rng: random.Random) -> list[Match]:
    """`calls` ordered matches of n entrants, to be judged in one wave.

    Degrees differ by at most one, and so do how often an entrant is shown first and second. The graph is
    connected. Up to n(n-1)/2 calls no pair repeats; the next as many repeat pairs in the other order, and
    so on in turn. Raises ValueError for fewer than n-1 calls, which cannot connect n entrants.
    """
    if calls < n - 1:
        raise ValueError(f"{calls} calls cannot connect {n} entrants: at least {n - 1} are needed")
    pairs = all_pairs(n)
    if not pairs:
        return []
    rounds, rest = divmod(calls, len(pairs))
    last = near_regular_graph(n, rest)
    times = {pair: rounds + (pair in last) for pair in pairs}
    matches = counterbalanced(pair for pair in pairs if times[pair] % 2)
    for (one, other), shown in times.items():
        matches += [Match(one, other), Match(other, one)] * (shown // 2)
    place = list(range(n))
    rng.shuffle(place)
    return [Match(place[match.first], place[match.second]) for match in matches]


@lru_cache(maxsize=256)
def near_regular_graph(n: int, edges: int) -> frozenset[Pair]:
    """A simple graph on a circle of n whose degrees differ by at most one; connected from n-1 edges on.

    Beyond half of all pairs it is what a smaller graph leaves out: its least degree, about n/2, connects
    it. Of the ways to place the remainder the one with the least mean variance of a comparison is taken.
    All groups of a step have the same size and need the same graph, hence the cache.
    """
    everything = set(all_pairs(n))
    fewer = min(edges, len(everything) - edges)
    steps = [step for step in range(2, (n + 1) // 2) if math.gcd(step, n) == 1] or [1]
    drafts = [_sparse_graph(n, fewer, step) for step in (steps if fewer > n and fewer % n else steps[:1])]
    graphs = [frozenset(draft if fewer == edges else everything - draft) for draft in drafts]
    return graphs[0] if len(graphs) == 1 else min(graphs, key=lambda graph: _mean_variance(n, graph))


def _sparse_graph(n: int, edges: int, step: int) -> set[Pair]:
    """Full offsets, and a remainder from the diameters if these suffice, else from the offset `step`."""
    full, rest = divmod(edges, n)
    if not full:
        return _part_of_offset(n, 1, rest)
    if n % 2 == 0 and rest <= n // 2:
        step, remainder = 0, {(i, i + n // 2) for i in _spread(range(n // 2), rest)}
    else:
        remainder = _part_of_offset(n, step, rest)
    offsets = _spread_offsets(n, full, step if rest else 0)
    return remainder.union(*({_pair(i, (i + offset) % n) for i in range(n)} for offset in offsets))


def _part_of_offset(n: int, step: int, edges: int) -> set[Pair]:
    """Up to n-1 edges of the walk i, i + step, i + 2 step ...: a matching, or all but a matching.

    The step shares no factor with n, so that the walk visits everyone and every second edge of it is a
    matching.
    """
    walk = [_pair(i * step % n, (i + 1) * step % n) for i in range(n)]
    apart = walk[: n - 1 : 2]
    return set(_spread(apart, edges)) if edges <= len(apart) else set(walk) - set(_spread(apart, n - edges))


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of the items, evenly spaced."""
    return [items[len(items) * i // count] for i in range(count)]


def _spread_offsets(n: int, count: int, taken: int) -> list[int]:
    """Offset 1, which connects the circle, then always the one that most lowers the variance of a comparison.

    The variance of the difference of two strengths, averaged over all pairs, is proportional to the sum of
    the inverse Laplacian eigenvalues, which a circulant graph has in closed form.
    """
    chosen = [1]
    spectrum = _spectrum(n, 1)
    while len(chosen) < count:
        free = [offset for offset in range(2, (n + 1) // 2) if offset not in chosen and offset != taken]
        traces = [_trace(spectrum + _spectrum(n, offset)) for offset in free]
        best = free[traces.index(min(traces))]
        chosen.append(best)
        spectrum = spectrum + _spectrum(n, best)
    return chosen


def _mean_variance(n: int, graph: frozenset[Pair]) -> float:
    one, other = np.array(sorted(graph)).T
    laplacian = np.zeros((n, n))
    laplacian[one, other] = laplacian[other, one] = -1.0
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    return _trace(np.linalg.eigvalsh(laplacian)[1:])


def _trace(eigenvalues: NDArray[np.floating]) -> float:
    """Sum of their inverses, rounded so that every machine takes the same of two equals."""
    return round(float((1.0 / eigenvalues).sum()), 9)


def _spectrum(n: int, offset: int) -> NDArray[np.float64]:
    """Laplacian eigenvalues of one offset, the zero of the constant vector left out."""
    return 2.0 - 2.0 * np.cos(2.0 * np.pi * np.arange(1, n) * offset / n)


def _pair(one: int, other: int) -> Pair:
    return (min(one, other), max(one, other))


Floats = NDArray[np.float64]
JudgedMatches = tuple[Sequence[Match], Sequence[Outcome | None]]

_RIDGES = np.logspace(-6, 1, 29)
_TYPICAL_RIDGE = 2.0


def balanced(n: int, calls: int, rng: random.Random) -> Topology:
    """One wave of `balanced_matches`, fitted by `fit_margins`. Raises ValueError for fewer than n-1 calls."""
    matches = balanced_matches(n, calls, rng)
    return fit_margins(n, matches, (yield matches))


def fit_margins(
    n: int,
    matches: Sequence[Match],
    outcomes: Sequence[Outcome | None],
    *,
    offset: float | None = None,
    level: float = 0.0,
) -> Strengths:
    """Strengths on the scale of the margins; they sum to 0 within each connected part of the graph.

    Minimises the squared residuals plus ridge * |strengths|^2. The ridge is the variance of a margin's
    noise over that of the strengths. The margins themselves decide it, by their marginal
    likelihood: a judge without noise is fitted exactly, and the noisier it is the more a thinly compared
    entrant is drawn to the middle. Without an offset one is fitted along, shrunk towards 0 by the same
    ridge. `level` is the weight of the sum of a call's two scores against their difference: 0 for scores
    that compare within a call only, otherwise what `score_level` finds. Matches without verdict are left
    out, and an entrant left without any is None. Raises ValueError for a negative level.
    """
    if level < 0.0:
        raise ValueError(f"level is {level}; the weight of the sums is at least 0")
    known = equations(n, matches, outcomes)
    design, target = _stacked(known, offset, level)
    strengths = ridge_solution(design, design.T @ target, _likeliest_ridge(design, target))
    seen = set(known.entrants)
    return [float(strengths[entrant]) if entrant in seen else None for entrant in range(n)]


def fit_step(
    sizes: Sequence[int],
    groups: Sequence[JudgedMatches],
    *,
    effects_of: Sequence[JudgedMatches] | None = None,
) -> list[Strengths]:
    """`fit_margins` for every group of a step, of so many entrants each, with the judge's effects pooled over all.

    An entrant's strength also owes to how high the sums of its calls are, as far as the step shows that these compare
    (`score_level`); for verdicts without a level, preferences, that is not at all. `effects_of`: all groups of the
    step, where these are not.
    """
    pooled = groups if effects_of is None else effects_of
    offset = position_offset(pooled)
    level = score_level(pooled, offset=offset)
    return [
        fit_margins(size, *group, offset=offset, level=level)
        for size, group in zip(sizes, groups, strict=True)
    ]


def position_offset(groups: Iterable[JudgedMatches]) -> float:
    """What being shown first is worth, in units of the margin.

    Generalised least squares with the strengths of every group as random effects, whose variance is half of
    the noise's, as under a realistic judge; that only bears on plans that are not counterbalanced. 0.0 when
    nothing was judged.
    """
    pull = weight = 0.0
    for matches, outcomes in groups:
        known = equations(width(matches), matches, outcomes)
        contrasts = known.contrasts
        # The ones, less what the strengths of the group can explain of them.
        unexplained = 1.0 - contrasts @ ridge_solution(contrasts, contrasts.sum(axis=0), _TYPICAL_RIDGE)
        pull += float(unexplained @ known.margins)
        weight += float(unexplained.sum())
    return pull / weight if weight else 0.0


def score_level(groups: Iterable[JudgedMatches], *, offset: float = 0.0) -> float:
    """How much the sum of a call's two scores says about the entrants, against their difference; in [0, 1].

    1 for a judge whose scores compare from call to call as well as within one, less the more the level
    of a call varies, and 0 where sums say nothing, as for logits or win probabilities. It is the
    recovery of inter-block information (Yates, 1940) with calls as blocks of two, its variances pooled
    over the groups: strengths are fitted to the margins alone, sums are regressed on them, and both
    steps are corrected for the noise of that fit. Too few comparisons to tell give 0.0.
    """
    totals = sum((_moments(*group, offset) for group in groups), start=np.zeros(7))
    residual, freedom, product, fitted, error, power, count = map(float, totals)
    if freedom < 0.5:  # They are whole, to within rounding.
        return 0.0
    noise = residual / freedom
    signal = fitted - noise * error
    if signal <= 0.0:
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


def ridge_solution(design: Floats, target: Floats, ridge: float) -> Floats:
    """Solves (design' design + ridge) x = target; a positive ridge gives every graph a single solution."""
    normal = design.T @ design + ridge * np.eye(design.shape[1])
    return np.asarray(np.linalg.solve(normal, target), dtype=np.float64)


def _stacked(known: "Equations", offset: float | None, level: float) -> tuple[Floats, Floats]:
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


@dataclass(frozen=True)
class Equations:
    """Per judged match a row of `contrasts` (+1, -1) with its margin, and of `totals` (+1, +1) with its sum.

    `totals` and `sums` are centred over the matches, which removes the common level.
    """

    contrasts: Floats
    margins: Floats
    totals: Floats
    sums: Floats

    @property
    def entrants(self) -> list[int]:
        """Those in at least one judged match."""
        return [int(entrant) for entrant in np.flatnonzero(self.contrasts.any(axis=0))]


def equations(n: int, matches: Sequence[Match], outcomes: Sequence[Outcome | None]) -> Equations:
    """The judged matches among n entrants; those without verdict are left out."""
    pairs = zip(matches, outcomes, strict=True)
    judged = [(match, outcome) for match, outcome in pairs if outcome is not None]
    rows = np.arange(len(judged))
    firsts, seconds = np.zeros((2, len(judged), n))
    firsts[rows, [match.first for match, _ in judged]] = 1.0
    seconds[rows, [match.second for match, _ in judged]] = 1.0
    scores = np.array([outcome for _, outcome in judged], dtype=np.float64).reshape(-1, 2)
    sums = scores.sum(axis=1)
    totals = firsts + seconds
    if judged:
        sums, totals = sums - sums.mean(), totals - totals.mean(axis=0)
    return Equations(firsts - seconds, scores[:, 0] - scores[:, 1], totals, sums)


def width(matches: Sequence[Match]) -> int:
    """The least number of entrants that such matches can have."""
    return 1 + max((max(match) for match in matches), default=-1)
