"""Profiles: which index for which machine, and what it will cost before anything starts.

Sizes follow from the formats; the speeds are those of one core of a current server and only set expectations.
At 21,015,324 passages of 768 dimensions the profiles need 64.6 (flat), 18.5 (compact), 16.3 (balanced) and
32.3 GB (gpu).
"""

import math
from enum import StrEnum

from scope_selfplay.schemas import Value

MOST_CELLS = 65_536
HNSW_FROM = 16_384
"""Cells from which the cell of a query is looked up in an HNSW graph instead of one by one."""
POINTS_PER_CELL = 39
"""What k-means wants per cell at least (FAISS warns below); it bounds the cells of a small corpus."""
TRAINING_POINTS_PER_CELL = 64


class ProfileName(StrEnum):
    BM25 = "bm25"
    FLAT = "flat"
    COMPACT = "compact"
    BALANCED = "balanced"
    GPU = "gpu"


class Profile(Value):
    name: ProfileName
    meaning: str
    bytes_per_row: float
    """In the index file, as a multiple of the dimensions, the row's id and its cell left out."""
    recall: float
    """What the gate demands of recall@3 against an exhaustive search."""
    resident: float
    """Share of the index that a busy server touches; the rest stays on the disk."""
    is_ivf: bool = False


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name=ProfileName.BM25, meaning="words, no model", bytes_per_row=0, recall=1.0, resident=1.0),
        Profile(
            name=ProfileName.FLAT, meaning="exact, up to a million", bytes_per_row=4, recall=1.0, resident=1.0
        ),
        Profile(
            name=ProfileName.COMPACT,
            meaning="16 GB machine: a bit per dimension in memory, a byte on the disk for the best",
            bytes_per_row=1.125,
            recall=0.99,
            resident=0.2,
            is_ivf=True,
        ),
        Profile(
            name=ProfileName.BALANCED,
            meaning="64 GB pod: eight bits per dimension in cells",
            bytes_per_row=1,
            recall=0.98,
            resident=1.0,
            is_ivf=True,
        ),
        Profile(
            name=ProfileName.GPU,
            meaning="exact in half precision on one GPU",
            bytes_per_row=2,
            recall=0.999,
            resident=1.0,
        ),
    )
}


class BuildEstimate(Value):
    """What a build will take; bytes and seconds."""

    index_bytes: int
    corpus_bytes: int
    build_disk: int
    """At the peak: corpus, vectors and index together."""
    build_memory: int
    serve_memory: int
    encode_seconds: float
    index_seconds: float


def cells(rows: int) -> int:
    """IVF cells: 4 * sqrt(rows), at most 65,536, and never fewer than 39 rows per cell."""
    return max(1, min(round(4 * math.sqrt(rows)), MOST_CELLS, rows // POINTS_PER_CELL))


def factory(name: ProfileName, rows: int) -> str:
    """The FAISS factory string of the part that FAISS holds; empty for profiles that it does not hold."""
    nlist = cells(rows)
    quantizer = f"IVF{nlist}_HNSW32" if nlist >= HNSW_FROM else f"IVF{nlist}"
    match name:
        case ProfileName.COMPACT:
            return f"{quantizer},RaBitQ"
        case ProfileName.BALANCED:
            return f"{quantizer},SQ8"
        case _:
            return ""


def estimate(
    name: ProfileName, *, rows: int, dimensions: int, corpus_bytes: int, passages_per_second: float
) -> BuildEstimate:
    """Costs of building and serving; `passages_per_second` is the measured speed of the encoder."""
    profile = PROFILES[name]
    if name is ProfileName.BM25:
        # About 60 distinct words a passage, 8 bytes each; building holds all words as Python numbers.
        index = rows * 60 * 8
        return BuildEstimate(
            index_bytes=index,
            corpus_bytes=corpus_bytes,
            build_disk=index + corpus_bytes,
            build_memory=rows * 2_600,
            serve_memory=index + corpus_bytes // 4,
            encode_seconds=0,
            index_seconds=rows / 5_000,
        )
    rows_bytes = rows * dimensions * profile.bytes_per_row
    overhead = rows * 16 + cells(rows) * dimensions * 4 * 1.4 if profile.is_ivf else 0
    index = round(rows_bytes + overhead)
    vectors = rows * dimensions * vector_bytes(name)
    training = min(rows, cells(rows) * TRAINING_POINTS_PER_CELL) * dimensions * 4 if profile.is_ivf else 0
    held = index * (profile.resident if name is ProfileName.COMPACT else 1.0) if profile.is_ivf else 0
    return BuildEstimate(
        index_bytes=index,
        corpus_bytes=corpus_bytes,
        build_disk=corpus_bytes + index + (vectors if profile.is_ivf else 0),
        build_memory=round(held + 2 * training) + (1 << 30),
        serve_memory=round(index * profile.resident) + corpus_bytes // 4 + (1 << 30),
        encode_seconds=rows / passages_per_second,
        index_seconds=_training_seconds(rows, dimensions) + rows / 8_000
        if profile.is_ivf
        else rows / 200_000,
    )


def vector_bytes(name: ProfileName) -> int:
    """Bytes per dimension of the vectors that a build keeps: exact for flat, half precision for others."""
    return 4 if name is ProfileName.FLAT else 2


def _training_seconds(rows: int, dimensions: int) -> float:
    """Ten rounds of k-means over the training sample at 40 GFLOP/s a core."""
    nlist = cells(rows)
    return 10 * 2.0 * min(rows, nlist * TRAINING_POINTS_PER_CELL) * nlist * dimensions / 40e9
