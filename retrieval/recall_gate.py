"""The recall gate: an index is only finished when it finds what an exhaustive search of the same vectors finds.

It also chooses the search effort: the cheapest setting that reaches the target. An index that stored garbage (FAISS
offers several ways to do that silently) cannot pass at any setting.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.dense import IvfIndex, Nearest, RefinedIvf, Rows
from retrieval.encoder import Vectors
from retrieval.index_folder import RecallReport
from scope_selfplay.errors import CorpusError

TOPK = 3
CHUNK = 1 << 15
REFINES = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class RecallTooLow(CorpusError):
    """No search effort found enough; `effort` found the most, `recall` of it."""

    def __init__(self, effort: "SearchEffort", recall: float, target: float) -> None:
        super().__init__(
            f"recall gate: at best {recall:.3f} of what an exhaustive search finds, {target} is needed; "
            "the index is not usable. Build it again; with another profile if this repeats"
        )
        self.effort = effort
        self.recall = recall


@dataclass(frozen=True)
class SearchEffort:
    """Cells that are searched per query, and candidates per wanted row that are scored again (0: none)."""

    nprobe: int
    refine: float


def exact(queries: Vectors, blocks: Iterable[NDArray[Any]], topk: int = TOPK) -> Nearest:
    """The exhaustive answer over blocks of consecutive rows, a part of a block in memory at a time."""
    scores = np.full((len(queries), topk), -np.inf, dtype=np.float32)
    rows = np.full((len(queries), topk), -1, dtype=np.int64)
    first = 0
    for block in blocks:
        for start in range(0, len(block), CHUNK):
            part = np.asarray(block[start : start + CHUNK], dtype=np.float32)
            found_scores, found = faiss.knn(
                queries, part, min(topk, len(part)), metric=faiss.METRIC_INNER_PRODUCT
            )
            merged = np.concatenate([scores, found_scores], axis=1)
            merged_rows = np.concatenate([rows, found + first], axis=1)
            order = np.argsort(-merged, axis=1, kind="stable")[:, :topk]
            scores = np.take_along_axis(merged, order, axis=1)
            rows = np.take_along_axis(merged_rows, order, axis=1)
            first += len(part)
    return Nearest(scores, rows)


def recall(found: Rows, expected: Rows) -> float:
    """Mean share of each query's expected rows that were found."""
    shares = [
        len(set(ours.tolist()) & set(theirs.tolist()) - {-1}) / max(1, len(set(theirs.tolist()) - {-1}))
        for ours, theirs in zip(found, expected, strict=True)
    ]
    return float(np.mean(shares)) if shares else 0.0


def measure(search: Callable[[Vectors, int], Nearest], queries: Vectors, expected: Rows) -> float:
    return recall(search(queries, expected.shape[1]).rows, expected)


def tune(
    index: IvfIndex | RefinedIvf, queries: Vectors, expected: Rows, target: float
) -> tuple[SearchEffort, RecallReport]:
    """Set the cheapest effort that reaches `target` on `index`.

    Raises RecallTooLow when searching everywhere is not enough: the index does not hold what was added.
    """
    best, best_effort = -1.0, SearchEffort(1, 0.0)
    for effort in _efforts(index):
        set_effort(index, effort)
        reached = measure(index.nearest, queries, expected)
        if reached > best:
            best, best_effort = reached, effort
        if reached >= target:
            topk, count = expected.shape[1], len(queries)
            return effort, RecallReport(recall=reached, topk=topk, queries=count, target=target)
    raise RecallTooLow(best_effort, best, target)


def _efforts(index: IvfIndex | RefinedIvf) -> Iterator[SearchEffort]:
    """From cheap to expensive: more cells first, then more candidates."""
    nlist = int((index.coarse if isinstance(index, RefinedIvf) else index).cells.nlist)
    probes = sorted({min(nlist, 1 << power) for power in range(nlist.bit_length() + 1)})
    for refine in REFINES if isinstance(index, RefinedIvf) else (0.0,):
        yield from (SearchEffort(nprobe, refine) for nprobe in probes)


def set_effort(index: IvfIndex | RefinedIvf, effort: SearchEffort) -> None:
    """Search `index` with this effort from now on."""
    if isinstance(index, RefinedIvf):
        index.refine, index = effort.refine, index.coarse
    index.cells.nprobe = effort.nprobe
