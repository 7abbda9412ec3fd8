r"""Passages on disk: one JSON line each plus the byte offset of every line, both memory-mapped.

A line is `{"id": ..., "contents": "\"Title\"\ntext"}`, the form that the field's corpora and clients use.
Opening costs nothing however large the corpus is, and a response splices the stored bytes without parsing
them. The line keeps the text as it was encoded; doubled quotes, which half of the public Wikipedia passages
still carry, are undone only in what is shown.
"""

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.folder import OFFSETS, PASSAGES, durable_file, map_array, save_array
from scope_selfplay.base.errors import CorpusError, RecordError
from scope_selfplay.base.values import Document

LONGEST_PASSAGE = 1 << 20
LONGEST_ID = 256


class Contents(NamedTuple):
    title: str
    text: str


def join_contents(title: str, text: str) -> str:
    title = " ".join(title.split())
    # A text that opens with a quote would read as a title line, so it gets an empty one.
    return f'"{title}"\n{text}' if title or text.startswith('"') else text


def split_contents(contents: str) -> Contents:
    """Undo `join_contents`; contents without a quoted first line have an empty title."""
    first, newline, rest = contents.partition("\n")
    if newline and len(first) >= 2 and first[0] == first[-1] == '"':
        return Contents(first[1:-1], rest)
    return Contents("", contents)


def passage_line(document: Document) -> bytes:
    """The stored line of a document, without its newline. Raises CorpusError when it cannot be one."""
    if not document.id or len(document.id) > LONGEST_ID:
        raise CorpusError(f"passage id {document.id[:40]!r}: expected 1 to {LONGEST_ID} characters")
    record = {"id": document.id, "contents": join_contents(document.title, document.text)}
    try:
        line = json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"passage {document.id!r}: half of a surrogate pair at character {error.start}"
        ) from None
    if len(line) > LONGEST_PASSAGE:
        raise CorpusError(
            f"passage {document.id!r}: {len(line):,} bytes, at most {LONGEST_PASSAGE:,} fit: chunk the corpus"
        )
    return line


def shown(line: bytes) -> bytes:
    r"""The line as a model should see it: `""word""` in the text becomes `"word"`; the title line stays.

    Works on the escaped bytes: inside a JSON string `\"` can only be an escaped quote, and the first `\"\n`
    ends the title line.
    """
    if rb"\"\"" not in line:
        return line
    start = line.find(b'"contents": "') + 13
    end = line.find(rb"\"\n", start) + 4 if line.startswith(rb"\"", start) else start
    return line[:end] + line[end:].replace(rb"\"\"", rb"\"")


class Passages:
    """A corpus by row. `buffer` holds the lines, `offsets` (size + 1,) where each starts, in bytes."""

    def __init__(self, buffer: bytes | mmap.mmap, offsets: NDArray[np.int64], corpus_hash: str) -> None:
        self._buffer = buffer
        self._offsets = offsets
        self.size = len(offsets) - 1
        self.corpus_hash = corpus_hash
        """sha256 of the lines, newlines included."""

    @classmethod
    def from_documents(cls, documents: Iterable[Document]) -> "Passages":
        lines = [passage_line(document) + b"\n" for document in unique(documents)]
        buffer = b"".join(lines)
        offsets = _offsets(array("q", map(len, lines)))
        return cls(buffer, offsets, hashlib.sha256(buffer).hexdigest())

    @classmethod
    def open(cls, folder: Path, corpus_hash: str) -> "Passages":
        """Map a folder that `write_passages` filled. Raises RecordError when the two files disagree."""
        path = folder / PASSAGES
        offsets = map_array(folder / OFFSETS)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: cannot be opened: {error}") from None
        if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets) or offsets[-1] != size:
            raise RecordError(f"{path}: {size:,} bytes do not match {OFFSETS}: build the index again")
        # A plain array over the same map: indexing a np.memmap costs five times as much.
        return cls(buffer, offsets.view(np.ndarray), corpus_hash)

    def length(self, rows: Sequence[int]) -> int:
        """Bytes of these rows' lines together."""
        taken = np.array(rows, dtype=np.int64)
        return int((self._offsets[taken + 1] - self._offsets[taken] - 1).sum())

    def line(self, row: int) -> bytes:
        """The stored bytes of one passage, as it was encoded."""
        return bytes(self._buffer[int(self._offsets[row]) : int(self._offsets[row + 1]) - 1])

    def contents(self, row: int) -> str:
        """What is encoded for one passage."""
        return str(self._parse(self.line(row), row)["contents"])

    def document(self, row: int) -> Document:
        """What is shown for one passage."""
        record = self._parse(shown(self.line(row)), row)
        contents = split_contents(record["contents"])
        return Document(id=record["id"], title=contents.title, text=contents.text)

    def _parse(self, line: bytes, row: int) -> dict[str, str]:
        try:
            record = json.loads(line)
            return {"id": record["id"], "contents": record["contents"]}
        except (ValueError, KeyError, TypeError):
            raise RecordError(f"{PASSAGES}:{row + 1}: damaged passage; run `scope index check`") from None


def unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Pass documents on; raises CorpusError at the first id that came before.

    Ids are remembered as 64-bit hashes (8 bytes each instead of about 90, so that 21M fit into 1.5 GB less). Two
    different ids of one corpus of that size meet with a chance of 1 in 80,000; then one has to be renamed.
    """
    seen: set[bytes] = set()
    for document in documents:
        key = hashlib.blake2b(document.id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if key in seen:
            raise CorpusError(
                f"passage {len(seen) + 1}: id {document.id!r} appears twice; ids must be unique"
            )
        seen.add(key)
        yield document


def write_passages(
    documents: Iterable[Document], folder: Path, on_row: Callable[[int], None] = lambda rows: None
) -> tuple[int, str]:
    """Stream documents into a folder; gives their number and the corpus's hash.

    The files have their names only after all is written. `on_row` is called with the rows so far. Raises CorpusError,
    as `passage_line` and `unique` do.
    """
    digest = hashlib.sha256()
    # Eight bytes a row; a list would take forty.
    lengths = array("q")
    with durable_file(folder / PASSAGES) as file:
        for document in unique(documents):
            line = passage_line(document) + b"\n"
            file.write(line)
            digest.update(line)
            lengths.append(len(line))
            on_row(len(lengths))
    save_array(folder / OFFSETS, _offsets(lengths))
    return len(lengths), digest.hexdigest()


def _offsets(lengths: "array[int]") -> NDArray[np.int64]:
    """Where each line starts, and where the last one ends (rows + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(lengths, dtype=np.int64), out=offsets[1:])
    return offsets
