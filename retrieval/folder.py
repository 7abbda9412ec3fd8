r"""An index folder: its files written so that a crash leaves the old one or the new one, its manifest, its passages.

The manifest records what was built from what, with a checksum of every file. It is written last, so a folder without
one is unfinished. `identity` (index and corpus) is what a client checks at the handshake and what a rollout stores.

Passages are one JSON line each plus the byte offset of every line, both memory-mapped. A line is
`{"id": ..., "contents": "\"Title\"\ntext"}`, the form that the field's corpora and clients use. Opening costs nothing
however large the corpus is, and a response splices the stored bytes without parsing them. The line keeps the text as
it was encoded; doubled quotes, which half of the public Wikipedia passages still carry, are undone only in what is
shown.
"""

import contextlib
import hashlib
import json
import mmap
import os
import tokenize
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scope_selfplay.base.errors import CorpusError, RecordError
from scope_selfplay.base.values import Document, Value
from scope_selfplay.store.files import read_value, sync_folder
from scope_selfplay.store.folder import checksum

MANIFEST = "manifest.json"
PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
ENCODER = "encoder"
"""Folder of the encoder."""
ENCODER_SETTINGS = "encoder.json"
SHARDS = "shards"
"""Folder of the vectors that a dense build has encoded, until it ends."""
FORMAT = 2
FULL_CHECK_BELOW = 2 << 30
"""Bytes up to which a folder's checksums are verified whenever it is opened: about two seconds."""
ARRAY_FAULTS = (OSError, ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError)
"""What NumPy raises over a changed byte of an array's header, which it reads as Python."""


class IndexKind(StrEnum):
    BM25 = "bm25"
    DENSE = "dense"


class Verify(StrEnum):
    AUTO = "auto"
    """Checksums below FULL_CHECK_BELOW; above, those of the encoder, and the sizes of the rest."""
    FULL = "full"
    SIZES = "sizes"


class FileChecksum(Value):
    size: int
    sha256: str


class RecallReport(Value):
    """How the index compares with an exhaustive search of the same vectors."""

    recall: float
    """Mean share of the exact top `topk` that the index returned."""
    topk: int
    queries: int
    target: float


class IndexManifest(Value):
    format: int = FORMAT
    kind: IndexKind
    profile: str
    rows: int = Field(ge=1)
    corpus_hash: str = ""
    """sha256 of the passages; empty, like `files`, only until the build is finished."""
    source_rows: dict[str, Any] | None = Field(default=None, exclude=True)
    """Written by releases before this one."""
    index_hash: str = ""
    """sha256 over everything that decides the answers but the corpus: see `index_hash`."""
    files: dict[str, FileChecksum] = Field(default_factory=dict)
    factory: str = ""
    dimensions: int = 0
    encoder: str = ""
    """Folder or package of the encoder, as it was given to the build."""
    encoder_hash: str = ""
    nprobe: int = 0
    refine: float = 0.0
    """Candidates per wanted row that are scored again with the finer copy; 0 without one."""
    gate: RecallReport | None = None
    seconds: float = 0.0
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def identity(self) -> str:
        return f"{self.kind}-{self.index_hash[:16]}-{self.corpus_hash[:16]}"

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files.values())


def read_manifest(folder: Path, verify: Verify = Verify.AUTO) -> IndexManifest:
    """The manifest of a finished index folder whose files match it.

    Raises RecordError for a folder that is unfinished, of another format, or damaged (with the file's name).
    """
    path = folder / MANIFEST
    manifest = read_value(path, IndexManifest, "build it again")
    if manifest is None:
        raise RecordError(f"{folder}: no {MANIFEST}: not an index, or its build has not finished")
    if manifest.format != FORMAT:
        raise RecordError(f"{path}: format {manifest.format}, this release reads {FORMAT}: build it again")
    if index_hash(manifest) != manifest.index_hash or PASSAGES not in manifest.files:
        raise RecordError(
            f"{path}: the index hash does not follow from the files' checksums and the settings"
        )
    full = verify is Verify.FULL or (verify is Verify.AUTO and manifest.size < FULL_CHECK_BELOW)
    for name, expected in manifest.files.items():
        is_encoder = verify is Verify.AUTO and name.startswith(ENCODER + "/")
        _check(folder / name, expected, full=full or is_encoder)
    if manifest.files[PASSAGES].sha256 != manifest.corpus_hash:
        raise RecordError(f"{folder}: the index was built for another corpus than {PASSAGES}")
    return manifest


def _check(path: Path, expected: FileChecksum, *, full: bool) -> None:
    try:
        size, sha256 = path.stat().st_size, expected.sha256
        if full and size == expected.size:
            sha256 = checksum(path)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; the manifest lists it") from None
    if size != expected.size:
        raise RecordError(f"{path}: {size:,} bytes, the manifest says {expected.size:,}: build it again")
    if sha256 != expected.sha256:
        raise RecordError(f"{path}: damaged, its sha256 is not the manifest's: build it again")


def index_hash(manifest: IndexManifest) -> str:
    """sha256 over the checksums of the index files, the encoder (it may lie outside the folder), nprobe and refine."""
    # The encoder's settings name the folder that it came from, which decides nothing.
    left_out = (PASSAGES, OFFSETS, f"{ENCODER}/{ENCODER_SETTINGS}")
    index = {name: file.sha256 for name, file in manifest.files.items() if name not in left_out}
    settings = [manifest.encoder_hash, manifest.nprobe, manifest.refine]
    return hashlib.sha256(json.dumps([index, *settings], sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which has its name, and is on the disk, only after the block ends without an error."""
    part = path.with_name(path.name + ".part")
    with part.open("wb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def save_array(path: Path, array: NDArray[Any]) -> None:
    with durable_file(path) as file:
        np.save(file, array)


def write_stacked(path: Path, shape: tuple[int, int], kind: Any, blocks: Iterable[NDArray[Any]]) -> None:
    """Blocks of rows, one after the other, as one .npy file of `shape`."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
    with durable_file(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=kind).data)


def map_array(path: Path, axes: int | None = None) -> NDArray[Any]:
    """Map a .npy file. Raises RecordError for one that is damaged or has another number of axes."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ARRAY_FAULTS as error:
        raise RecordError(f"{path}: cannot be opened: {error}") from None
    if axes is not None and array.ndim != axes:
        raise RecordError(f"{path}: {array.ndim} axes, expected {axes}")
    return array


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

    def __init__(self, buffer: bytes | mmap.mmap, offsets: NDArray[np.int64]) -> None:
        self._buffer = buffer
        self._offsets = offsets
        self.size = len(offsets) - 1

    @cached_property
    def corpus_hash(self) -> str:
        """sha256 of the lines, newlines included."""
        return hashlib.sha256(self._buffer).hexdigest()

    @classmethod
    def from_documents(cls, documents: Iterable[Document]) -> "Passages":
        lines = [passage_line(document) + b"\n" for document in unique(documents)]
        return cls(b"".join(lines), _offsets(array("q", map(len, lines))))

    @classmethod
    def open(cls, folder: Path) -> "Passages":
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
        return cls(buffer, offsets.view(np.ndarray))

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


def text_key(text: str) -> int:
    """64 bits of a hash, 0 for no text. Two different ones among 21M texts meet with a chance of 1 in 80,000."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") if text else 0


class RowsByKey(NamedTuple):
    """Sorted keys of texts (keys,), and `rows[starts[i]:starts[i + 1]]` for key i; key 0 is a row without a text."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, row_keys: Iterable[int]) -> "RowsByKey":
        """From the key of each row."""
        keys_by_row = np.fromiter(row_keys, np.uint64)
        rows = np.argsort(keys_by_row, kind="stable")
        keys, starts = np.unique(keys_by_row[rows], return_index=True)
        return cls(keys, np.append(starts, len(rows)).astype(np.int64), rows.astype(np.int64))

    def rows_of(self, key: int) -> NDArray[np.int64]:
        place = int(np.searchsorted(self.keys, np.uint64(key)))
        if not key or place == len(self.keys) or int(self.keys[place]) != key:
            return self.rows[:0]
        return self.rows[self.starts[place] : self.starts[place + 1]]


def unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Pass documents on; raises CorpusError at the first id that came before.

    Ids are remembered as 64-bit hashes (8 bytes each instead of about 90, so that 21M fit into 1.5 GB less); of two
    different ones that meet, one has to be renamed.
    """
    seen: set[int] = set()
    for document in documents:
        key = text_key(document.id)
        if key in seen:
            raise CorpusError(
                f"passage {len(seen) + 1}: id {document.id!r} appears twice; ids must be unique"
            )
        seen.add(key)
        yield document


def write_passages(
    documents: Iterable[Document], folder: Path, on_row: Callable[[int], None] = lambda rows: None
) -> None:
    """Stream documents into a folder.

    The files have their names only after all is written. `on_row` is called with the rows so far. Raises CorpusError
    for no documents, and as `passage_line` and `unique` do.
    """
    # Eight bytes a row; a list would take forty.
    lengths = array("q")
    with durable_file(folder / PASSAGES) as file:
        for document in unique(documents):
            line = passage_line(document) + b"\n"
            file.write(line)
            lengths.append(len(line))
            on_row(len(lengths))
        if not lengths:
            raise CorpusError("the corpus holds no document")
    save_array(folder / OFFSETS, _offsets(lengths))


def _offsets(lengths: "array[int]") -> NDArray[np.int64]:
    """Where each line starts, and where the last one ends (rows + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(lengths, dtype=np.int64), out=offsets[1:])
    return offsets
