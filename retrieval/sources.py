"""The files that a corpus is read from: which they are, how large, and a hash of what they hold."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from scope_selfplay.errors import CorpusError

TEXT_SUFFIXES = frozenset({".txt", ".md", ".markdown", ".html", ".htm"})


def text_files(folder: Path) -> list[Path]:
    """The text files below `folder`, in order. An index that is built inside it holds none of them."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in TEXT_SUFFIXES and path.is_file()
    )


def source_bytes(source: Path) -> int:
    """Size of what is read of a corpus; 0 for one that does not exist."""
    if source.is_dir():
        return sum(path.stat().st_size for path in text_files(source))
    return source.stat().st_size if source.exists() else 0


def source_hash(source: Path) -> str:
    """sha256 of a corpus: of a file's bytes, or of the paths and bytes of a folder's text files.

    Times and places are no part of it, so that copies of one source on two machines are the same source. Raises
    CorpusError for what cannot be read.
    """
    if source.is_dir():
        return hash_of_files(source, text_files(source))
    return _file_hash(source)


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
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
