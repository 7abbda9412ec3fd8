"""Vectors of a corpus that somebody else encoded: a flat FAISS index, row for row the passages of the source.

Search-R1 and others publish such indexes. They say neither which encoder nor which order of passages they are of, so
some rows are encoded again and compared.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.encoder import Encoder, Vectors
from retrieval.passages import Passages
from scope_selfplay.errors import CorpusError

COMPARED = 32
LEAST_COSINE = 0.98
"""Half precision and another library keep more than .999; another prefix of the same encoder loses a few hundredths."""
MOST_UNLIKE = 2
"""Rows that may differ: a text that was cut at another length."""
BLOCK_ROWS = 65_536


class PublishedVectors:
    """As `VectorShards`: blocks of consecutive rows, and samples; the file is mapped, never held."""

    def __init__(self, file: Path) -> None:
        """Raises CorpusError for a file that is not a flat FAISS index."""
        try:
            # Kept: what downcasting gives does not own the vectors.
            self._whole: Any = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-200:]
            raise CorpusError(f"{file}: not an index of FAISS, or cut off: {reason}") from None
        index = faiss.downcast_index(self._whole)
        if not isinstance(index, faiss.IndexFlat):
            raise CorpusError(
                f"{file}: a {type(index).__name__}, which has no exact vectors; expected a flat index (IndexFlatIP)"
            )
        self._index: Any = index
        self.file = file
        self.shape = (int(index.ntotal), int(index.d))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        rows = self.shape[0]
        for first in range(0, rows, BLOCK_ROWS):
            yield self._index.reconstruct_n(first, min(BLOCK_ROWS, rows - first))

    def sample(self, count: int, draw: np.random.Generator) -> Vectors:
        """`count` different rows in row order (count, d)."""
        rows = np.sort(draw.choice(self.shape[0], size=min(count, self.shape[0]), replace=False))
        return np.asarray(self._index.reconstruct_batch(rows), dtype=np.float32)

    def check(self, passages: Passages, encoder: Encoder) -> None:
        """Raises CorpusError where these are not the encoder's vectors of the passages, row for row."""
        expected = (passages.size, encoder.dimensions)
        if self.shape != expected:
            raise CorpusError(
                f"{self.file}: {self.shape[0]:,} vectors of {self.shape[1]} dimensions, expected {expected[0]:,} of "
                f"{expected[1]}: another corpus or encoder"
            )
        rows = np.unique(np.linspace(0, passages.size - 1, COMPARED).astype(np.int64))
        found = np.asarray(self._index.reconstruct_batch(rows), dtype=np.float32)
        cosines = (found * encoder.passages([passages.contents(int(row)) for row in rows])).sum(axis=1)
        unlike = np.flatnonzero(~(cosines >= LEAST_COSINE))
        if len(unlike) > min(MOST_UNLIKE, len(rows) // 4):
            row = int(rows[unlike[0]])
            raise CorpusError(
                f"{self.file}: {len(unlike)} of {len(rows)} rows are not what the encoder makes of the passages (row "
                f"{row}: cosine {cosines[unlike[0]]:.3f}): another corpus, order or encoder; encode instead"
            )
