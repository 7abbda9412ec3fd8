"""Builds an index folder from documents; a folder with a manifest is finished and is left alone."""

import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from retrieval.bm25 import Bm25Index
from retrieval.manifest import MANIFEST, Kind, Manifest, checksums, index_hash, write_manifest
from retrieval.passages import PASSAGES, Passages, PassageWriter, unique
from scope_selfplay.errors import CorpusError
from scope_selfplay.schemas import Document

Progress = Callable[[str, int, int], None]
"""Called with a step's name, the rows done and the rows in all (0 while unknown)."""


def silent(step: str, done: int, total: int) -> None:
    return


def write_passages(documents: Iterable[Document], folder: Path, progress: Progress = silent) -> str:
    """Store the corpus in `folder` and give its hash. Raises CorpusError for an empty or invalid one."""
    folder.mkdir(parents=True, exist_ok=True)
    with PassageWriter(folder) as writer:
        for document in unique(documents):
            writer.add(document)
            if writer.size % 10_000 == 0:
                progress("passages", writer.size, 0)
    if not writer.size:
        raise CorpusError("the corpus holds no document")
    return writer.corpus_hash


def build_bm25(documents: Iterable[Document], folder: Path, progress: Progress = silent) -> Manifest:
    """A BM25 index of `documents` in `folder`. Raises CorpusError."""
    start = time.monotonic()
    corpus_hash = write_passages(documents, folder, progress)
    passages = Passages.open(folder, corpus_hash)
    progress("bm25", 0, passages.size)
    Bm25Index.build(passages).save(folder)
    progress("bm25", passages.size, passages.size)
    files = checksums(folder, (path.name for path in folder.iterdir() if path.name != MANIFEST))
    manifest = Manifest(
        kind=Kind.BM25,
        profile="bm25",
        rows=passages.size,
        corpus_hash=files[PASSAGES].sha256,
        index_hash=index_hash(files),
        files=files,
        seconds=time.monotonic() - start,
        versions={"bm25s": version("bm25s")},
    )
    write_manifest(folder, manifest)
    return manifest
