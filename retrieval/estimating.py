"""What a build will take, from a look at the corpus and a short run of the encoder."""

import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from retrieval.build import Recipe
from retrieval.passages import passage_line
from retrieval.profiles import ProfileName, estimate
from retrieval.readers import read_documents
from scope_selfplay.errors import CorpusError
from scope_selfplay.schemas import Document

LOOKED_AT = 2000
ENCODED = 32
DEFAULT_CHUNK_BYTES = 7
"""Bytes of text per token, where a chunk's size is given in tokens."""


def estimate_build(recipe: Recipe, source: Path, threads: int) -> str:
    """One line for a person. Encodes a few passages of the source to measure the encoder's speed.

    Raises CorpusError for a source that cannot be read, CheckpointError for the encoder.
    """
    first = list(islice(read_documents(source), LOOKED_AT))
    if not first:
        raise CorpusError(f"{source}: the corpus holds no document")
    stored = sum(len(passage_line(document)) + 1 for document in first)
    # Compressed text is about a third of its size.
    unpacked = recipe.source_bytes * (3 if source.suffix == ".gz" else 1)
    rows = len(first) if len(first) < LOOKED_AT else round(unpacked / (stored / len(first)))
    if recipe.chunk_tokens:
        rows = max(rows, round(unpacked / (recipe.chunk_tokens * DEFAULT_CHUNK_BYTES)))
    name = ProfileName(recipe.profile)
    speed, dimensions = (1.0, 0) if name is ProfileName.BM25 else _encoder_speed(recipe, first, threads)
    costs = estimate(
        name,
        rows=rows,
        dimensions=dimensions,
        corpus_bytes=round(stored / len(first) * rows),
        passages_per_second=speed,
    )
    minutes = (costs.encode_seconds + costs.index_seconds) / 60
    return (
        f"estimate for profile {name} and about {rows:,} passages: {minutes:,.0f} min "
        f"({costs.encode_seconds / 60:,.0f} of them encoding), "
        f"disk {costs.build_disk / 1e9:,.1f} GB at the peak, "
        f"memory {costs.build_memory / 1e9:,.1f} GB to build and {costs.serve_memory / 1e9:,.1f} GB to serve"
    )


def _encoder_speed(recipe: Recipe, documents: list[Document], threads: int) -> tuple[float, int]:
    """Passages per second, and dimensions."""
    from retrieval.encoder import FAMILIES, Backend, open_encoder, prepare_encoder
    from retrieval.passages import join_contents

    texts = [join_contents(document.title, document.text) for document in documents[-ENCODED:]]
    with TemporaryDirectory() as folder:
        prepare_encoder(recipe.encoder, FAMILIES[recipe.family], Backend(recipe.backend), Path(folder))
        encoder = open_encoder(Path(folder), threads=threads)
        encoder.passages(texts[:2])
        start = time.perf_counter()
        encoder.passages(texts)
        return len(texts) / (time.perf_counter() - start), encoder.dimensions
