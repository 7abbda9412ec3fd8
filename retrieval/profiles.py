"""Profiles: which index for which machine, and what it will cost before anything starts.

Sizes follow from the formats; the speeds are those of one core of a current server and only set expectations. At
21,015,324 passages of 768 dimensions the profiles need 64.6 (flat), 18.5 (compact), 16.3 (balanced) and 32.3 GB (gpu).
"""

import math
import time
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrieval.build import Recipe
    from scope_selfplay.schemas import Document

MOST_CELLS = 65_536
HNSW_FROM = 16_384
"""Cells from which the cell of a query is looked up in an HNSW graph instead of one by one."""
POINTS_PER_CELL = 39
"""What k-means wants per cell at least (FAISS warns below); it bounds the cells of a small corpus."""
TRAINING_POINTS_PER_CELL = 64
SAMPLED_DOCUMENTS = 2000
ENCODED = 32
DEFAULT_CHUNK_BYTES = 7
"""Bytes of text per token, where a chunk's size is given in tokens."""


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


def estimate_build(recipe: "Recipe", source: Path, threads: int, *, is_encoded: bool = False) -> str:
    """What a build will take, in one line for a person. Encodes a few passages of the source to measure the speed.

    Raises CorpusError for a source that cannot be read, CheckpointError for the encoder.
    """
    from retrieval.corpus import read_documents
    from retrieval.passages import passage_line
    from scope_selfplay.errors import CorpusError

    first = list(islice(read_documents(source), SAMPLED_DOCUMENTS))
    if not first:
        raise CorpusError(f"{source}: the corpus holds no document")
    stored = sum(len(passage_line(document)) + 1 for document in first)
    # Compressed text is about a third of its size.
    unpacked = recipe.source_bytes * (3 if source.suffix == ".gz" else 1)
    rows = len(first) if len(first) < SAMPLED_DOCUMENTS else round(unpacked / (stored / len(first)))
    if recipe.chunk_tokens:
        rows = max(rows, round(unpacked / (recipe.chunk_tokens * DEFAULT_CHUNK_BYTES)))
    name = ProfileName(recipe.profile)
    speed, dimensions = (1.0, 0) if name is ProfileName.BM25 else _encoder_speed(recipe, first, threads)
    corpus_bytes = round(stored / len(first) * rows)
    costs = estimate(
        name, rows=rows, dimensions=dimensions, corpus_bytes=corpus_bytes, passages_per_second=speed
    )
    encoding = 0.0 if is_encoded else costs.encode_seconds
    minutes = (encoding + costs.index_seconds) / 60
    return (
        f"estimate for profile {name} and about {rows:,} passages: {minutes:,.0f} min "
        f"({encoding / 60:,.0f} of them encoding with {threads} threads), "
        f"disk {costs.build_disk / 1e9:,.1f} GB at the peak, "
        f"memory {costs.build_memory / 1e9:,.1f} GB to build and {costs.serve_memory / 1e9:,.1f} GB to serve"
    )


def _encoder_speed(recipe: "Recipe", documents: list["Document"], threads: int) -> tuple[float, int]:
    """Passages per second, and dimensions."""
    from retrieval.encoder import FAMILIES, Backend, open_encoder, prepare_encoder
    from retrieval.gpu_passages import GpuPassages
    from retrieval.passages import join_contents

    on_gpu = recipe.device != "cpu"
    texts = [join_contents(each.title, each.text) for each in documents[0 if on_gpu else -ENCODED :]]
    with TemporaryDirectory() as folder:
        prepare_encoder(recipe.encoder, FAMILIES[recipe.family], Backend(recipe.backend), Path(folder))
        encoder = open_encoder(Path(folder), threads=threads)
        work = GpuPassages(recipe.encoder, FAMILIES[recipe.family]) if on_gpu else encoder
        work.passages(texts[:2])
        start = time.perf_counter()
        work.passages(texts)
        return len(texts) / (time.perf_counter() - start), encoder.dimensions
