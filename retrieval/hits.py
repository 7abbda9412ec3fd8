"""What a search returns: rows of the corpus and their scores, best first, equal scores in row order."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


class Hit(NamedTuple):
    row: int
    score: float


class Index(Protocol):
    """Searches the rows of one corpus. Not safe to call from several threads at once."""

    size: int
    """Rows in the corpus."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """One list per query, at most `min(topk, size)` hits each; shorter when fewer rows match at all."""


def best_rows(scores: Scores, topk: int) -> list[Hit]:
    """The `topk` highest positive entries of `scores` (rows,); equal scores go to the lower row."""
    if topk < scores.size:
        # A plain argpartition would pick arbitrary rows among those tied at the cut.
        threshold = np.partition(scores, scores.size - topk)[scores.size - topk]
        rows = np.flatnonzero(scores >= threshold)
    else:
        rows = np.arange(scores.size)
    ordered = rows[np.argsort(-scores[rows], kind="stable")][:topk]
    return [Hit(int(row), float(scores[row])) for row in ordered if scores[row] > 0]
