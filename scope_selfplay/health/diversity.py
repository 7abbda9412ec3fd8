"""How different tasks are: MinHash over word trigrams, so that a corpus of any size takes one pass."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from datasketch import MinHash

PERMUTATIONS = 128
SAME = 0.8
"""Word trigrams shared (Jaccard) from which two tasks count as one."""


class Diversity(NamedTuple):
    """`duplicates`: the share of tasks with a near twin before them. `distance`: mean 1 - Jaccard to the nearest."""

    duplicates: float | None
    distance: float | None


def measure_diversity(texts: Sequence[str], *, before: Sequence[str] = (), sample: int = 1000) -> Diversity:
    """Of `texts`, against each other and those of `before`; distances among the first `sample` of them.

    A twin is found with high probability, not surely: the bands of the index are set for `SAME`.
    """
    # It brings scipy: 45 MB that nobody needs who only shows what was found.
    from datasketch import MinHashLSH

    if not texts:
        return Diversity(None, None)
    marks = [_mark(text) for text in (*before, *texts)]
    index = MinHashLSH(threshold=SAME, num_perm=PERMUTATIONS)
    twins = 0
    for row, mark in enumerate(marks):
        if row >= len(before):
            twins += any(marks[other].jaccard(mark) >= SAME for other in index.query(mark))
        index.insert(row, mark)
    return Diversity(twins / len(texts), _nearest_distance(marks[len(before) :][:sample]))


def _nearest_distance(marks: "Sequence[MinHash]") -> float | None:
    if len(marks) < 2:
        return None
    values = np.array([mark.hashvalues for mark in marks])
    nearest = [float(_similarities(values, row).max()) for row in range(len(marks))]
    return 1.0 - float(np.mean(nearest))


def _similarities(values: NDArray[np.uint64], row: int) -> NDArray[np.float64]:
    same = np.asarray((values == values[row]).mean(axis=1), dtype=np.float64)
    same[row] = 0.0
    return same


def _mark(text: str) -> "MinHash":
    from datasketch import MinHash

    words = text.lower().split()
    grams = {" ".join(words[start : start + 3]) for start in range(max(1, len(words) - 2))}
    mark = MinHash(num_perm=PERMUTATIONS, seed=1)
    mark.update_batch([gram.encode("utf-8", "replace") for gram in sorted(grams)])
    return mark
