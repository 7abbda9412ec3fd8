"""Searches over vectors: exhaustive, in cells, in cells with a finer second look, on a GPU.

Each gives, for queries (n, d), scores (n, k) and rows (n, k), best first; -1 fills rows that do not exist.
"""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.arrays import map_array
from retrieval.encoder import Vectors
from scope_selfplay.errors import RecordError

IVF = "cells.faiss"
FINE = "fine.npy"
FINE_RANGE = "fine_range.npy"
FLAT = "vectors.npy"
SPARE = 8
"""Copies of one passage that may tie at the cut."""
Rows = NDArray[np.int64]


class Nearest(NamedTuple):
    scores: Vectors
    rows: Rows


class VectorSearch(Protocol):
    size: int
    dimensions: int

    def nearest(self, queries: Vectors, topk: int) -> Nearest: ...


class ExhaustiveSearch:
    """Inner products with every row of a mapped float32 array."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        self._vectors = vectors
        self.size, self.dimensions = vectors.shape

    @classmethod
    def open(cls, folder: Path) -> "ExhaustiveSearch":
        return cls(open_array(folder / FLAT))

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        # FAISS picks any of the rows that tie at the cut; a few more let the lowest row win, as in shards.
        wanted = min(topk + SPARE, self.size)
        scores, rows = faiss.knn(queries, self._vectors, wanted, metric=faiss.METRIC_INNER_PRODUCT)
        order = np.lexsort((rows, -scores), axis=1)[:, :topk]
        return Nearest(np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1))


class IvfIndex:
    """A FAISS IVF index; looks into `nprobe` cells per query."""

    def __init__(self, index: Any, nprobe: int) -> None:
        self._index = index
        self._ivf = faiss.extract_index_ivf(index)
        self._ivf.nprobe = nprobe
        self.nlist = int(self._ivf.nlist)
        self.size, self.dimensions = index.ntotal, index.d

    @classmethod
    def open(cls, folder: Path, nprobe: int) -> "IvfIndex":
        return cls(read_index(folder / IVF), nprobe)

    @property
    def nprobe(self) -> int:
        return int(self._ivf.nprobe)

    @nprobe.setter
    def nprobe(self, value: int) -> None:
        self._ivf.nprobe = value

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        scores, rows = self._index.search(queries, min(topk, self.size))
        return Nearest(scores, rows)


class RefinedIvf:
    """Coarse cells propose `refine` times topk rows; a finer copy on the disk scores them again.

    `fine` (rows, d) holds a byte per dimension, `low + step * byte` is the value; only the proposed rows are
    read.
    """

    def __init__(self, coarse: IvfIndex, fine: NDArray[np.uint8], span: Vectors, refine: float) -> None:
        self.coarse = coarse
        self.refine = refine
        self._fine = fine
        self.size, self.dimensions = fine.shape
        if span.shape != (2, self.dimensions):
            raise RecordError(f"{FINE_RANGE} is {span.shape}, expected (2, {self.dimensions}): build again")
        self._low, self._step = span
        if coarse.size != self.size:
            raise RecordError(f"{IVF} has {coarse.size:,} rows, {FINE} has {self.size:,}: build again")

    @classmethod
    def open(cls, folder: Path, nprobe: int, refine: float) -> "RefinedIvf":
        span = np.asarray(open_array(folder / FINE_RANGE), dtype=np.float32)
        return cls(IvfIndex.open(folder, nprobe), open_array(folder / FINE), span, refine)

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        wanted = min(self.size, max(topk, round(topk * self.refine)))
        proposed = self.coarse.nearest(queries, wanted).rows
        # In the order of the file: neighbouring rows share pages.
        proposed.sort(axis=1)
        values = self._fine[np.maximum(proposed, 0)].astype(np.float32)
        scores = np.einsum("nkd,nd->nk", values, queries * self._step) + (queries @ self._low)[:, None]
        scores[proposed < 0] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
        return Nearest(
            np.take_along_axis(scores, order, axis=1).astype(np.float32),
            np.take_along_axis(proposed, order, axis=1),
        )


class GpuSearch:
    """ExhaustiveSearch in half precision on one GPU. Search it from one thread only."""

    def __init__(self, vectors: NDArray[Any], rows_at_once: int = 1 << 18) -> None:
        if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
            raise RecordError(
                "profile gpu needs faiss-gpu and a GPU; build another profile from the same vectors"
            )
        self._resources = faiss.StandardGpuResources()
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        self.size, self.dimensions = vectors.shape
        self._index = faiss.GpuIndexFlatIP(self._resources, self.dimensions, config)
        for start in range(0, self.size, rows_at_once):
            self._index.add(np.asarray(vectors[start : start + rows_at_once], dtype=np.float32))

    @classmethod
    def open(cls, folder: Path) -> "GpuSearch":
        return cls(open_array(folder / FLAT))

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        scores, rows = self._index.search(queries, min(topk, self.size))
        return Nearest(scores, rows)


def fine_span(sample: Vectors) -> Vectors:
    """Lowest value and step (2, d) of each dimension's byte: the range with the least squared error on the
    sample.

    The full range wastes steps on a few extreme values, a narrow one cuts them off; which is worse differs
    from one dimension of an encoder to the next.
    """
    part = sample[: 1 << 14]
    low, high = sample.min(axis=0), sample.max(axis=0)
    middle, half = (low + high) / 2, (high - low) / 2 + 1e-9
    spans = [np.stack([middle - share * half, share * half * 2 / 255]) for share in (1.0, 0.9, 0.8, 0.7)]
    errors = [np.square(fine_codes(part, span) * span[1] + span[0] - part).mean(axis=0) for span in spans]
    best = np.argmin(errors, axis=0)
    return np.stack(spans)[best, :, np.arange(len(best))].T.astype(np.float32)


def fine_codes(vectors: Vectors, span: Vectors) -> NDArray[np.uint8]:
    low, step = span
    codes: NDArray[np.uint8] = np.clip(np.rint((vectors - low) / step), 0, 255).astype(np.uint8)
    return codes


def open_array(path: Path) -> NDArray[Any]:
    """Map a .npy file of rows. Raises RecordError."""
    array = map_array(path)
    if array.ndim != 2:
        raise RecordError(f"{path}: {array.ndim} axes, expected rows and dimensions")
    return array


def read_index(path: Path) -> Any:
    """Map a FAISS index. Raises RecordError."""
    try:
        # Plain IO_FLAG_MMAP is ignored for several index types; this one maps codes and lists of all of ours.
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise RecordError(f"{path}: not a readable FAISS index: {str(error).splitlines()[0]}") from None
