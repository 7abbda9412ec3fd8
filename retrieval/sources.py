"""The files that a corpus is read from: which they are and how large."""

from pathlib import Path

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
