"""Profiles: which index for which machine, and what it will cost before anything starts.

Sizes follow from the formats; the speeds are those of one core of a current server and only set expectations. At
21,015,324 passages of 768 dimensions the profiles need 64.6 (flat), 18.5 (compact), 16.3 (balanced) and 32.3 GB (gpu).
"""

import math
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from retrieval.folder import ENCODER, PASSAGES, IndexManifest
from scope_selfplay.base.errors import ConfigError

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


@dataclass(frozen=True)
class Profile:
    bytes_per_row: float
    """In the index file, as a multiple of the dimensions, the row's id and its cell left out."""
    recall: float
    """What the gate demands of recall@3 against an exhaustive search."""
    resident: float = 1.0
    """Share of the index that a busy server touches; the rest stays on the disk."""
    is_ivf: bool = False


PROFILES = {
    ProfileName.BM25: Profile(bytes_per_row=0, recall=1.0),
    ProfileName.FLAT: Profile(bytes_per_row=4, recall=1.0),
    # A bit per dimension in memory, a byte on the disk for the best.
    ProfileName.COMPACT: Profile(bytes_per_row=1.125, recall=0.99, resident=0.2, is_ivf=True),
    ProfileName.BALANCED: Profile(bytes_per_row=1, recall=0.98, is_ivf=True),
    ProfileName.GPU: Profile(bytes_per_row=2, recall=0.999),
}


def cells(rows: int) -> int:
    """IVF cells: 4 * sqrt(rows), at most 65,536, and never fewer than 39 rows per cell."""
    return max(1, min(round(4 * math.sqrt(rows)), MOST_CELLS, rows // POINTS_PER_CELL))


def factory(name: ProfileName, rows: int) -> str:
    """The FAISS factory string of the part that FAISS holds; empty for profiles that it does not hold."""
    nlist = cells(rows)
    quantizer = f"IVF{nlist}_HNSW32" if nlist >= HNSW_FROM else f"IVF{nlist}"
    codes = {ProfileName.COMPACT: "RaBitQ", ProfileName.BALANCED: "SQ8"}
    return f"{quantizer},{codes[name]}" if name in codes else ""


def vector_bytes(name: ProfileName) -> int:
    """Bytes per dimension of the vectors that a build keeps: exact for flat, half precision for others."""
    return 4 if name is ProfileName.FLAT else 2


@dataclass(frozen=True)
class BuildEstimate:
    """What a build will take; bytes and seconds."""

    index_bytes: int
    build_disk: int
    """At the peak: corpus, vectors and index together."""
    build_memory: int
    serve_memory: int
    encode_seconds: float
    index_seconds: float


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
            build_disk=index + corpus_bytes,
            build_memory=rows * 2_600,
            serve_memory=index + corpus_bytes // 4,
            encode_seconds=0,
            index_seconds=rows / 5_000,
        )
    nlist, is_ivf = cells(rows), profile.is_ivf
    overhead = rows * 16 + nlist * dimensions * 4 * 1.4 if is_ivf else 0
    index = round(rows * dimensions * profile.bytes_per_row + overhead)
    vectors = rows * dimensions * vector_bytes(name)
    sample = min(rows, nlist * TRAINING_POINTS_PER_CELL)
    training = sample * dimensions * 4 if is_ivf else 0
    held = index * (profile.resident if name is ProfileName.COMPACT else 1.0) if is_ivf else 0
    # Ten rounds of k-means over the training sample at 40 GFLOP/s a core.
    training_seconds = 10 * 2.0 * sample * nlist * dimensions / 40e9
    return BuildEstimate(
        index_bytes=index,
        build_disk=corpus_bytes + index + (vectors if is_ivf else 0),
        build_memory=round(held + 2 * training) + (1 << 30),
        serve_memory=round(index * profile.resident) + corpus_bytes // 4 + (1 << 30),
        encode_seconds=rows / passages_per_second,
        index_seconds=training_seconds + rows / 8_000 if is_ivf else rows / 200_000,
    )


GIB = 2**30
PROCESS_BYTES = 400 << 20
"""Libraries of one process, without its encoder."""
ENCODER_SHARE = 1.5
"""What an encoder takes over the size of its files: packed weights, and a batch at work."""


class ServeMemory(NamedTuple):
    """Bytes: `held` by processes, and `mapped` by a busy server."""

    held: int
    mapped: int

    @property
    def total(self) -> int:
        return self.held + self.mapped


def serve_memory(manifest: IndexManifest, workers: int) -> ServeMemory:
    """What an index takes that is served by so many search processes, beside the process that answers requests."""
    sizes = {name: file.size for name, file in manifest.files.items()}
    encoder = sum(size for name, size in sizes.items() if name.startswith(f"{ENCODER}/"))
    passages = sizes.get(PASSAGES, 0)
    resident = PROFILES[ProfileName(manifest.profile)].resident
    mapped = round((manifest.size - encoder - passages) * resident) + passages // 4
    return ServeMemory(held_bytes(encoder, workers), mapped)


def held_bytes(encoder: int, workers: int) -> int:
    """By the processes; `encoder` has the bytes of its files."""
    return PROCESS_BYTES + max(1, workers) * (PROCESS_BYTES + round(ENCODER_SHARE * encoder))


def check_memory(needed: ServeMemory, workers: int, limit: int | None) -> None:
    """Raises ConfigError where the processes alone need more than the container's limit; warns where the index does."""
    if limit is None:
        return
    has = f"the container has {limit / GIB:.1f} GiB"
    if needed.held > limit:
        raise ConfigError(
            f"{max(1, workers)} search processes hold {needed.held / GIB:.1f} GiB and {has}: give it "
            f"{needed.total / GIB:.0f}Gi (cluster.retriever.memory), or fewer processes (--workers)"
        )
    if needed.total > limit:
        print(
            f"warning: processes hold {needed.held / GIB:.1f} GiB, the index takes {needed.mapped / GIB:.1f} more and "
            f"{has}: searches will wait for the disk; {needed.total / GIB:.0f}Gi would hold it",
            file=sys.stderr,
            flush=True,
        )
