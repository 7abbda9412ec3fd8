"""Opens the index of a folder by its kind. The heavy libraries are imported only for the kind that needs
them.
"""

from pathlib import Path

from retrieval.hits import Index
from retrieval.manifest import IndexKind, IndexManifest
from scope_selfplay.errors import RecordError


def open_index(folder: Path, manifest: IndexManifest, *, threads: int = 1) -> Index:
    """An index ready to search with `threads` threads. Raises RecordError when it is not the manifest's."""
    index: Index
    match manifest.kind:
        case IndexKind.BM25:
            from retrieval.bm25 import Bm25Index

            index = Bm25Index.open(folder)
        case IndexKind.DENSE:
            from retrieval.dense import DenseIndex

            index = DenseIndex.open(folder, manifest, threads=threads)
    if index.size != manifest.rows:
        raise RecordError(f"{folder}: the index has {index.size:,} rows, the manifest says {manifest.rows:,}")
    return index
