"""A dense index: an encoder in front of a search over vectors.

Vectors are searched exhaustively, in cells, in cells with a finer second look, or on a GPU. Each search gives, for
queries (n, d), scores (n, k) and rows (n, k), best first; -1 fills rows that do not exist.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.encoder import Encoder, Vectors, encoder_hash, open_encoder
from retrieval.folder import ENCODER, IndexManifest, map_array
from retrieval.profiles import ProfileName
from retrieval.wire import Hit
from scope_selfplay.base.errors import RecordError

IVF = "cells.faiss"
FINE = "fine.npy"
FINE_RANGE = "fine_range.npy"
FLAT = "vectors.npy"
SPARE = 8
"""Copies of one passage that may tie at the cut."""
ROWS_AT_ONCE = 1 << 18
"""Rows that are copied to a GPU at once."""
Rows = NDArray[np.int64]


class Nearest(NamedTuple):
    scores: Vectors
    rows: Rows


class VectorSearch(Protocol):
    size: int
    dimensions: int

    def nearest(self, queries: Vectors, topk: int) -> Nearest: ...


class DenseIndex:
    def __init__(self, encoder: Encoder, vectors: VectorSearch) -> None:
        """Raises RecordError when the encoder's vectors have another length than the index's."""
        if encoder.dimensions != vectors.dimensions:
            raise RecordError(
                f"the encoder gives {encoder.dimensions} dimensions, the index has {vectors.dimensions}"
            )
        self._encoder = encoder
        self._vectors = vectors
        self.size = vectors.size

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, *, threads: int = 1) -> "DenseIndex":
        """Raises RecordError when the encoder is not the one that the index was built with."""
        faiss.omp_set_num_threads(threads)
        check_encoder(folder, manifest)
        return cls(open_encoder(folder / ENCODER, threads=threads), open_vectors(folder, manifest))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return hits(self._vectors.nearest(self._encoder.queries(queries), topk))


def check_encoder(folder: Path, manifest: IndexManifest) -> None:
    """Compare the encoder's hash with the manifest's: a model outside the folder may have been replaced."""
    part = ENCODER + "/"
    # What lies in the folder was compared with these checksums when the manifest was read.
    known = {name.removeprefix(part): file.sha256 for name, file in manifest.files.items()}
    found = encoder_hash(folder / ENCODER, known)
    if found != manifest.encoder_hash:
        raise RecordError(
            f"{folder}: its encoder {manifest.encoder} has changed since the build (hash {found[:16]}, the "
            f"manifest says {manifest.encoder_hash[:16]}): put the model back, or build the index again"
        )


def open_vectors(folder: Path, manifest: IndexManifest) -> VectorSearch:
    match ProfileName(manifest.profile):
        case ProfileName.FLAT:
            return ExhaustiveSearch(map_array(folder / FLAT, axes=2))
        case ProfileName.BALANCED | ProfileName.COMPACT as profile:
            effort = SearchEffort(manifest.nprobe, manifest.refine)
            return IvfIndex.open(folder, effort, is_fine=profile is ProfileName.COMPACT)
        case ProfileName.GPU:
            return GpuSearch(map_array(folder / FLAT, axes=2))
        case other:
            raise RecordError(f"{folder}: profile {other} has no vectors")


def hits(nearest: Nearest) -> list[list[Hit]]:
    """Rows that exist, best first; equal scores in row order. Left out are FAISS's fillers (row -1)."""
    found = []
    for scores, rows in zip(nearest.scores, nearest.rows, strict=True):
        kept = (rows >= 0) & np.isfinite(scores)
        existing = map(Hit, rows[kept].tolist(), scores[kept].tolist())
        found.append(sorted(existing, key=lambda hit: (-hit.score, hit.row)))
    return found


class ExhaustiveSearch:
    """Inner products with every row of a mapped float32 array."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        self._vectors = vectors
        self.size, self.dimensions = vectors.shape

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        # FAISS picks any of the rows that tie at the cut; a few more let the lowest row win.
        wanted = min(topk + SPARE, self.size)
        scores, rows = faiss.knn(queries, self._vectors, wanted, metric=faiss.METRIC_INNER_PRODUCT)
        order = np.lexsort((rows, -scores), axis=1)[:, :topk]
        return Nearest(np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1))


@dataclass(frozen=True)
class SearchEffort:
    """Cells that are searched per query, and candidates per wanted row that are scored again (0: none)."""

    nprobe: int
    refine: float = 0.0


class FineCopy(NamedTuple):
    """A byte per dimension on the disk, `codes` (rows, d), whose value is `low + step * byte`: `span` (2, d)."""

    codes: NDArray[np.uint8]
    span: Vectors


class IvfIndex:
    """A FAISS IVF index. With a `fine` copy its cells propose more rows than are wanted, which that one scores again;
    only these are read. Raises RecordError for a copy of something else.
    """

    def __init__(self, index: Any, effort: SearchEffort, fine: FineCopy | None = None) -> None:
        self._index, self._fine = index, fine
        self._cells = faiss.extract_index_ivf(index)
        self.size, self.dimensions = index.ntotal, index.d
        expected = (self.size, self.dimensions), (2, self.dimensions)
        if fine is not None and (fine.codes.shape, fine.span.shape) != expected:
            raise RecordError(
                f"{FINE_RANGE} is {fine.span.shape}, expected {expected[1]}; {FINE} is {fine.codes.shape}, expected "
                f"{expected[0]}: build again"
            )
        self.set_effort(effort)

    @classmethod
    def open(cls, folder: Path, effort: SearchEffort, *, is_fine: bool) -> "IvfIndex":
        fine = None
        if is_fine:
            span = np.asarray(map_array(folder / FINE_RANGE, axes=2), dtype=np.float32)
            fine = FineCopy(map_array(folder / FINE, axes=2), span)
        return cls(read_index(folder / IVF), effort, fine)

    def set_effort(self, effort: SearchEffort) -> None:
        """Search with this effort from now on."""
        self._refine, self._cells.nprobe = effort.refine, effort.nprobe

    def efforts(self) -> Iterator[SearchEffort]:
        """From cheap to expensive: more cells first, then more candidates."""
        nlist = int(self._cells.nlist)
        probes = sorted({min(nlist, 1 << power) for power in range(nlist.bit_length() + 1)})
        for refine in (0.0,) if self._fine is None else REFINES:
            yield from (SearchEffort(nprobe, refine) for nprobe in probes)

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        wanted = max(topk, round(topk * self._refine)) if self._fine else topk
        scores, rows = self._index.search(queries, min(wanted, self.size))
        if self._fine is None:
            return Nearest(scores, rows)
        # In the order of the file: neighbouring rows share pages.
        rows.sort(axis=1)
        low, step = self._fine.span
        values = self._fine.codes[np.maximum(rows, 0)].astype(np.float32)
        scores = np.einsum("nkd,nd->nk", values, queries * step) + (queries @ low)[:, None]
        scores[rows < 0] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
        found = np.take_along_axis(scores, order, axis=1).astype(np.float32)
        return Nearest(found, np.take_along_axis(rows, order, axis=1))


class GpuSearch:
    """ExhaustiveSearch in half precision on one GPU. Search it from one thread only."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
            raise RecordError("profile gpu needs a GPU and faiss-gpu (extra retrieval-gpu); build another")
        self._resources = faiss.StandardGpuResources()
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        self.size, self.dimensions = vectors.shape
        self._index = faiss.GpuIndexFlatIP(self._resources, self.dimensions, config)
        for start in range(0, self.size, ROWS_AT_ONCE):
            self._index.add(np.asarray(vectors[start : start + ROWS_AT_ONCE], dtype=np.float32))

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        scores, rows = self._index.search(queries, min(topk, self.size))
        return Nearest(scores, rows)


def fine_span(sample: Vectors) -> Vectors:
    """Lowest value and step (2, d) of each dimension's byte: the range with the least squared error on the sample.

    The full range wastes steps on a few extreme values, a narrow one cuts them off; which is worse differs from one
    dimension of an encoder to the next.
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


def read_index(path: Path) -> Any:
    """Map a FAISS index. Raises RecordError."""
    try:
        # Plain IO_FLAG_MMAP is ignored for several index types; this one maps codes and lists of all of ours.
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise RecordError(f"{path}: not a readable FAISS index: {str(error).splitlines()[0]}") from None


TOPK = 3
CHUNK = 1 << 15
REFINES = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def exact(queries: Vectors, blocks: Iterable[NDArray[Any]], topk: int = TOPK) -> Nearest:
    """The exhaustive answer over blocks of consecutive rows, a part of a block in memory at a time."""
    heap, first = faiss.ResultHeap(len(queries), topk, keep_max=True), 0
    for block in blocks:
        for start in range(0, len(block), CHUNK):
            part = np.asarray(block[start : start + CHUNK], dtype=np.float32)
            wanted = min(topk, len(part))
            scores, rows = faiss.knn(queries, part, wanted, metric=faiss.METRIC_INNER_PRODUCT)
            heap.add_result(scores, rows + first)
            first += len(part)
    heap.finalize()
    return Nearest(heap.D, heap.I)


def measure(search: Callable[[Vectors, int], Nearest], queries: Vectors, expected: Rows) -> float:
    """Recall: the mean share of each query's expected rows that are found."""
    found = search(queries, expected.shape[1]).rows
    pairs = zip(found.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len({*ours} & {*theirs}) / len(theirs) for ours, theirs in pairs]))


def tune(index: IvfIndex, queries: Vectors, expected: Rows, target: float) -> tuple[SearchEffort, float]:
    """Set the cheapest effort that reaches `target` on `index`, else the one that finds the most; with its recall.

    An index whose recall is below the target, searched everywhere, does not hold what was added.
    """
    best, best_effort = -1.0, SearchEffort(1)
    for effort in index.efforts():
        index.set_effort(effort)
        reached = measure(index.nearest, queries, expected)
        if reached > best:
            best, best_effort = reached, effort
        if reached >= target:
            break
    index.set_effort(best_effort)
    return best_effort, best
