"""A dense index: an encoder in front of a search over vectors."""

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from retrieval.encoder import ENCODER, Encoder, encoder_hash, open_encoder
from retrieval.hits import Hit, in_order
from retrieval.manifest import IndexManifest
from retrieval.profiles import ProfileName
from retrieval.vectors import ExhaustiveSearch, GpuSearch, IvfIndex, Nearest, RefinedIvf, VectorSearch
from scope_selfplay.errors import RecordError


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
        if not queries:
            return []
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
            return ExhaustiveSearch.open(folder)
        case ProfileName.BALANCED:
            return IvfIndex.open(folder, manifest.nprobe)
        case ProfileName.COMPACT:
            return RefinedIvf.open(folder, manifest.nprobe, manifest.refine)
        case ProfileName.GPU:
            return GpuSearch.open(folder)
        case other:
            raise RecordError(f"{folder}: profile {other} has no vectors")


def hits(nearest: Nearest) -> list[list[Hit]]:
    """Rows that exist, best first; equal scores in row order. The peer passes FAISS's fillers (-1) on as
    rows.
    """
    found = []
    for scores, rows in zip(nearest.scores, nearest.rows, strict=True):
        kept = (rows >= 0) & np.isfinite(scores)
        pairs = zip(rows[kept].tolist(), scores[kept].tolist(), strict=True)
        found.append(in_order(Hit(row, score) for row, score in pairs))
    return found
