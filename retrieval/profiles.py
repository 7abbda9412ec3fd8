"""Profiles: which index for which machine, and what it takes there.

Sizes follow from the formats: at 21,015,324 passages of 768 dimensions the profiles need 64.6 (flat), 18.5 (compact),
16.3 (balanced) and 32.3 GB (gpu).
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


def index_bytes(name: ProfileName, rows: int, dimensions: int) -> int:
    """What an index takes on the disk beside its passages."""
    if name is ProfileName.BM25:
        # About 60 distinct words a passage, 8 bytes each.
        return rows * 60 * 8
    profile = PROFILES[name]
    overhead = rows * 16 + cells(rows) * dimensions * 4 * 1.4 if profile.is_ivf else 0
    return round(rows * dimensions * profile.bytes_per_row + overhead)


def busy_bytes(name: ProfileName, *, rows: int, dimensions: int, corpus_bytes: int) -> int:
    """What a busy server of it has in memory, without its encoders."""
    held = 0 if name is ProfileName.BM25 else 1 << 30
    return round(index_bytes(name, rows, dimensions) * PROFILES[name].resident) + corpus_bytes // 4 + held


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
