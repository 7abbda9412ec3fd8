"""Who meets whom in a balanced design: near-regular, connected, and shown first as often as second.

Entrants are placed on a circle in random order. An offset joins every entrant to the one that many places further on,
so all are compared equally often. The edges left over after the full offsets become a matching, or an offset less a
matching.
"""

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.ranking.matches import Match, all_pairs, counterbalanced

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
        traces = [round(float((1.0 / (spectrum + _spectrum(n, offset))).sum()), 9) for offset in free]
        best = free[traces.index(min(traces))]
        chosen.append(best)
        spectrum = spectrum + _spectrum(n, best)
    return chosen


def _mean_variance(n: int, graph: frozenset[Pair]) -> float:
    """Sum of inverse Laplacian eigenvalues, rounded so that every machine takes the same of two equals."""
    one, other = np.array(sorted(graph)).T
    laplacian = np.zeros((n, n))
    laplacian[one, other] = laplacian[other, one] = -1.0
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    return round(float((1.0 / np.linalg.eigvalsh(laplacian)[1:]).sum()), 9)


def _spectrum(n: int, offset: int) -> NDArray[np.float64]:
    """Laplacian eigenvalues of one offset, the zero of the constant vector left out."""
    return 2.0 - 2.0 * np.cos(2.0 * np.pi * np.arange(1, n) * offset / n)


def _pair(one: int, other: int) -> Pair:
    return (min(one, other), max(one, other))
