"""A published corpus as the file that runs and `scope index build` read, with a receipt beside it."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.corpus.read import is_passage_file, read_passages
from scope_selfplay.store.fetch import PublishedFile, Say, download
from scope_selfplay.store.files import disk_faults, read_value, sync_folder, write_atomic
from scope_selfplay.store.folder import checksum

_KINDS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
_TOLD_EVERY = 1_000_000
_LOCK_TIMEOUT = 60.0


def fetch_file(published: PublishedFile, file: Path, *, say: Say) -> None:
    """Bring `published` to `file`: as it is, or as JSON lines where `file` is a .jsonl and the published one is not.

    A file that is there and whole is left alone. Raises as `download`, CorpusError for a corpus that cannot be read.
    """
    is_converted = len(published.urls) == 1 and _kind(file.name) != _kind(published.name)
    # Names that only this fetch has: the lock keeps others out, and what a kill left is written anew.
    source = file.with_name(f".{file.name}.from.{published.name}")
    with disk_faults(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock")
        with folder_lock(file, lock, work="fetching", say=say, timeout=_LOCK_TIMEOUT):
            if _is_whole(file, published):
                # A kill may have left it after the corpus had its name.
                source.unlink(missing_ok=True)
                say(f"{file}: is there already")
                return
            rows = ""
            if is_converted:
                rows = f", {_make(published, source, file, say):,} passages"
            else:
                download(published, file, say=say)
                _write_receipt(published, file, file)
            say(f"{file}: {file.stat().st_size / 1e9:.1f} GB{rows}")


def _make(published: PublishedFile, source: Path, file: Path, say: Say) -> int:
    """`file` out of the published one, brought to `source`; gives its passages. Raises ConfigError where no corpus can
    be made under this name.
    """
    if file.suffix != ".jsonl" or not _kind(published.name):
        raise ConfigError(
            f"{file}: cannot be made from {published.name}; expected a name with .jsonl, made from one of "
            f"{', '.join(_KINDS)}, or the published file's own ending"
        )
    if file.exists():
        raise ConfigError(
            f"{file}: is there already and was not fetched here; give another name, or remove it"
        )
    if source.exists() and checksum(source) != published.sha256:
        say(f"{file}: begins anew; what had come has another checksum")
        source.unlink()
    if not source.exists():
        download(published, source, say=say)
    say(f"{file}: made from {published.name}")
    lines, passages = file.with_name(f".{file.name}.lines"), 0
    with lines.open("wb", buffering=1 << 20) as opened:
        for passages, line in enumerate(_lines(source), start=1):
            opened.write(line)
            if passages % _TOLD_EVERY == 0:
                say(f"{passages:,} passages")
        opened.flush()
        os.fsync(opened.fileno())
    if not passages:
        raise CorpusError(f"{source}: holds no passage")
    # Before the corpus has its name: without a receipt it would look like somebody's own.
    _write_receipt(published, file, lines, passages)
    lines.replace(file)
    sync_folder(file.parent)
    source.unlink()
    return passages


def _write_receipt(published: PublishedFile, file: Path, made: Path, passages: int | None = None) -> None:
    told = {"urls": published.urls, "sha256": published.sha256, "passages": passages, "file": checksum(made)}
    write_atomic(_receipt(file), json.dumps(told, indent=1) + "\n")


def _receipt(file: Path) -> Path:
    return file.with_name(f"{file.name}.fetched.json")


class _FetchedFile(BaseModel):
    """A receipt: the checksum of what was published, and that of the file that was made of it."""

    sha256: str
    file: str


def _is_whole(file: Path, published: PublishedFile) -> bool:
    """Whether this very file was fetched here. Raises ConfigError for another one under its name."""
    receipt = _receipt(file)
    fetched = read_value(receipt, _FetchedFile, f"remove it and {file.name}, and run this again")
    if fetched is None or not file.is_file():
        return False
    if fetched.sha256 != published.sha256:
        raise ConfigError(
            f"{file}: was made from a file with SHA-256 {fetched.sha256}, asked was {published.sha256}; give another "
            "name, or remove it"
        )
    if checksum(file) != fetched.file:
        raise ConfigError(f"{file}: changed since it was fetched; remove it and run this again")
    return True


def _kind(name: str) -> str:
    return next((kind for kind in _KINDS if name.endswith(kind)), "")


def _lines(source: Path) -> Iterator[bytes]:
    if is_passage_file(source):
        for _, document in read_passages(source):
            record = {"id": document.id, "title": document.title, "text": document.text}
            yield json.dumps(record, ensure_ascii=False).encode() + b"\n"
        return
    try:
        with gzip.open(source) as opened:
            yield from opened
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{source}: cannot be read: {error}") from None
