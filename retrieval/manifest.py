"""The manifest of an index folder: what was built from what, with a checksum of every file.

It is written last, so a folder without one is unfinished. `identity` (index and corpus) is what a client
checks at the handshake and what a rollout stores.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError

from retrieval.encoder import ENCODER, SETTINGS
from retrieval.passages import OFFSETS, PASSAGES
from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Value

MANIFEST = "manifest.json"
FORMAT = 2
FULL_CHECK_BELOW = 2 << 30
"""Bytes up to which a folder's checksums are verified whenever it is opened: about two seconds."""


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


class SourceRows(Value):
    """Which rows of which source a corpus holds: what tells whether shards fit together."""

    source: str
    """sha256 of the source and of how it was cut into passages."""
    first: int = Field(ge=0)
    end: int
    """The row after the last one."""
    total: int | None = None
    """Rows of the whole source, known only where the build met its end."""


class IndexManifest(Value):
    format: int = FORMAT
    kind: IndexKind
    profile: str
    rows: int = Field(ge=1)
    corpus_hash: str
    source_rows: SourceRows | None = None
    """None for documents that Python code made, and in an index of an older release."""
    index_hash: str = ""
    """sha256 over everything that decides the answers but the corpus: `index_hash` says what."""
    files: dict[str, FileChecksum] = Field(default_factory=dict)
    """Empty only until the build is sealed."""
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
    """The manifest of a finished index folder whose files are as it says.

    Raises RecordError for a folder that is unfinished, of another format, or damaged (with the file's name).
    """
    path = folder / MANIFEST
    try:
        manifest = IndexManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{folder}: no {MANIFEST}: not an index, or its build has not finished") from None
    except (OSError, ValidationError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
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


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    write_json(folder / MANIFEST, manifest)


def write_json(path: Path, value: Value) -> None:
    """Durable before it is visible: a crash leaves the old file or the new one."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(value.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, FileChecksum]:
    return {name: _checksum(folder / name) for name in sorted(names)}


def index_hash(manifest: IndexManifest) -> str:
    """sha256 over the checksums of the index files, the encoder (which may lie outside the folder), and how
    hard the index looks: nprobe and refine.
    """
    # The encoder's settings name the folder that it came from, which decides nothing.
    left_out = (PASSAGES, OFFSETS, f"{ENCODER}/{SETTINGS}")
    index = {name: file.sha256 for name, file in manifest.files.items() if name not in left_out}
    settings = [manifest.encoder_hash, manifest.nprobe, manifest.refine]
    return hashlib.sha256(json.dumps([index, *settings], sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> FileChecksum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileChecksum(size=file.tell(), sha256=digest)


def _check(path: Path, expected: FileChecksum, *, full: bool) -> None:
    try:
        found = _checksum(path) if full else FileChecksum(size=path.stat().st_size, sha256=expected.sha256)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; the manifest lists it") from None
    if found.size != expected.size:
        raise RecordError(
            f"{path}: {found.size:,} bytes, the manifest says {expected.size:,}: build it again"
        )
    if found != expected:
        raise RecordError(f"{path}: damaged, its sha256 is not the manifest's: build it again")
