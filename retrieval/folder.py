"""An index folder: its files written so that a crash leaves the old one or the new one, and its manifest.

The manifest records what was built from what, with a checksum of every file. It is written last, so a folder without
one is unfinished. `identity` (index and corpus) is what a client checks at the handshake and what a rollout stores.
"""

import contextlib
import hashlib
import json
import os
import tokenize
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Value
from scope_selfplay.store.files import read_value
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
    corpus_hash: str
    source_rows: dict[str, Any] | None = Field(default=None, exclude=True)
    """Written by releases before this one."""
    index_hash: str = ""
    """sha256 over everything that decides the answers but the corpus: see `index_hash`."""
    files: dict[str, FileChecksum] = Field(default_factory=dict)
    """Empty only until the build is finished."""
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
