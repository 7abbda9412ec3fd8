"""Matches as linear equations in the entrants' strengths.

One judged match gives two: its margin is the strength of the first less that of the second, and the sum
of its scores is the sum of both strengths plus a level that is the same for all matches of the group.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.ranking.matches import Match
from scope_selfplay.schemas import Outcome

Floats = NDArray[np.float64]


class Equations(NamedTuple):
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
