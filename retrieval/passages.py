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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.arrays import map_array
from scope_selfplay.errors import CorpusError, RecordError
from scope_selfplay.schemas import Document

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
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
        offsets = np.zeros(len(lines) + 1, dtype=np.int64)
        np.cumsum([len(line) for line in lines], out=offsets[1:])
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

    Ids are remembered as 64-bit hashes (8 bytes each instead of about 90, so that 21M fit into 1.5 GB less).
    Two different ids of one corpus of that size meet with a chance of 1 in 80,000; then one has to be
    renamed.
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


class PassageWriter:
    """Streams documents into a folder; the two files appear under their names only after a clean exit."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / PASSAGES, folder / OFFSETS]
        self._parts = [path.with_name(path.name + ".part") for path in self._paths]
        self._hash = hashlib.sha256()
        self._offsets = [np.zeros(1, dtype=np.int64)]
        self._lengths: list[int] = []
        self.size = 0

    def __enter__(self) -> "PassageWriter":
        self._file = self._parts[0].open("wb", buffering=1 << 20)
        return self

    def add(self, document: Document) -> None:
        line = passage_line(document) + b"\n"
        self._file.write(line)
        self._hash.update(line)
        self._lengths.append(len(line))
        self.size += 1
        if len(self._lengths) == 1 << 16:
            self._fold()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._fold()
        with self._parts[1].open("wb") as file:
            np.save(file, np.concatenate(self._offsets))
            file.flush()
            os.fsync(file.fileno())
        for part, path in zip(self._parts, self._paths, strict=True):
            part.replace(path)

    @property
    def corpus_hash(self) -> str:
        return self._hash.hexdigest()

    def _fold(self) -> None:
        if self._lengths:
            ends = np.cumsum(np.asarray(self._lengths, dtype=np.int64)) + self._offsets[-1][-1]
            self._offsets.append(ends)
            self._lengths = []
