"""A corpus as an index is built from it: its documents as a run reads them, cut, and a hash of what its files hold."""

import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from retrieval.folder import LONGEST_ID, Passages, RowsByKey, text_key
from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.text import spaced
from scope_selfplay.base.values import Document
from scope_selfplay.corpus.cut import Chunker
from scope_selfplay.corpus.read import located_documents, survey
from scope_selfplay.store.folder import checksum


def read_documents(source: Path, skipped: dict[Path, str] | None = None) -> Iterator[Document]:
    """The documents of a `.tsv[.gz]`, `.jsonl[.gz]` or `.parquet` file, or of a folder of texts, one at a time.

    `skipped` gets the files of a folder that are not read. Raises CorpusError for a missing source and at the first
    line that is not a document.
    """
    return (document for _, document in located_documents(source, None, skipped, lenient=True))


def chunked(documents: Iterable[Document], size: int) -> Iterator[Document]:
    """Cut each document's text to pieces of at most `size` words; a text without any gives no piece."""
    # DPR's passages are 100 words each.
    chunker = Chunker(size, lambda texts: [len(spaced(text).split()) for text in texts])
    for document in documents:
        # A title has no part in the size.
        pieces = chunker.cut(document.model_copy(update={"title": ""})) if document.text.strip() else []
        for piece in pieces:
            yield piece.model_copy(update={"title": document.title})


def source_hash(source: Path) -> str:
    """sha256 of a corpus: of a file's bytes, or of the paths and bytes of what is read of a folder.

    Times and locations do not count, so that copies of one source on two machines are the same source. Raises
    CorpusError for what cannot be read.
    """
    return hash_of_files(source, survey(source, None).read) if source.is_dir() else _file_hash(source)


def hash_of_files(root: Path, paths: Iterable[Path]) -> str:
    """sha256 over paths below `root` and what the files hold. Raises CorpusError for what cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        # A hash has one length: no path can be taken for the end of another file.
        digest.update(
            f"{_file_hash(path)} {path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    try:
        return checksum(path)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None


MOST_PASSAGES = 2048
"""Of one document, in each direction."""
LONGEST_DOCUMENT = 1 << 19
"""Characters; what comes after is left out."""


class DocumentLookup:
    """Documents of one corpus by the id of any of their passages. May be asked from several threads."""

    def __init__(self, passages: Passages) -> None:
        self._passages = passages
        self._lock = threading.Lock()
        self._by_id: RowsByKey | None = None

    def document(self, passage_id: str) -> Document | None:
        """The document that this passage is of, under the passage's id; None for an id that the corpus has not."""
        row = self._row(passage_id)
        if row is None:
            return None
        asked = self._passages.document(row)
        texts = [*reversed(self._neighbours(row, -1, asked.title)), asked.text]
        texts += self._neighbours(row, 1, asked.title)
        return asked.model_copy(update={"text": " ".join(texts)[:LONGEST_DOCUMENT]})

    def _neighbours(self, row: int, step: int, title: str) -> list[str]:
        texts: list[str] = []
        # Passages without a title are documents of their own.
        while title and len(texts) < MOST_PASSAGES and 0 <= (row := row + step) < self._passages.size:
            neighbour = self._passages.document(row)
            if neighbour.title != title:
                break
            texts.append(neighbour.text)
        return texts

    def _row(self, passage_id: str) -> int | None:
        if not passage_id or len(passage_id) > LONGEST_ID:
            return None
        if passage_id.isascii() and passage_id.isdecimal():
            for row in (int(passage_id), int(passage_id) - 1):
                if 0 <= row < self._passages.size and self._passages.document(row).id == passage_id:
                    return row
        with self._lock:
            if self._by_id is None:
                ids = (self._passages.document(row).id for row in range(self._passages.size))
                self._by_id = RowsByKey.of(map(text_key, ids))
        rows = self._by_id.rows_of(text_key(passage_id)).tolist()
        return next((row for row in rows if self._passages.document(row).id == passage_id), None)
