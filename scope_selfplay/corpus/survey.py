"""What of a folder is read, and what is left alone and why: nothing vanishes silently. Looks at names only."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.base.values import CorpusReader
from scope_selfplay.corpus.convert import CONVERTED_SUFFIXES, INSTALL, can_convert

MARKDOWN_SUFFIXES = (".md", ".markdown")
TEXT_SUFFIXES = (*MARKDOWN_SUFFIXES, ".txt")
_LINES = (".jsonl", ".json", ".tsv", ".gz", ".csv", ".parquet")
_SHOWN = 3


class FolderSurvey(NamedTuple):
    """Paths in the order in which they are read; `skipped` has the reason for each of the others."""

    read: list[Path]
    skipped: dict[Path, str]

    def __str__(self) -> str:
        found = f"{len(self.read):,} files are read"
        return f"{found}, {listed(self.skipped)}" if self.skipped else found


def listed(skipped: Mapping[Path, str]) -> str:
    """The files that are not read, by reason: `1 skipped: 1 need ... (a.pdf)`."""
    reasons: dict[str, list[str]] = {}
    for path, reason in skipped.items():
        reasons.setdefault(reason, []).append(path.name)
    parts = [
        f"{len(names):,} {reason} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for reason, names in reasons.items()
    ]
    return f"{len(skipped):,} skipped: {'; '.join(parts)}"


def survey(folder: Path, reader: CorpusReader | None) -> FolderSurvey:
    """All files below a folder but hidden ones, as a reader takes them."""
    own = MARKDOWN_SUFFIXES if reader is CorpusReader.MARKDOWN_SECTIONS else TEXT_SUFFIXES
    reasons = {path: fault or _reason_to_skip(path, own) for path, fault in sorted(_files_below(folder))}
    return FolderSurvey(
        [path for path, reason in reasons.items() if not reason],
        {path: reason for path, reason in reasons.items() if reason},
    )


def _reason_to_skip(path: Path, own: tuple[str, ...]) -> str:
    suffix = path.suffix.lower()
    if suffix in own:
        return ""
    if suffix in CONVERTED_SUFFIXES:
        return "" if can_convert() else f"need {INSTALL}"
    if suffix in TEXT_SUFFIXES:
        return "are no Markdown, which the reader markdown_sections reads"
    if suffix in _LINES:
        return "are files of documents, which are given themselves and not in a folder"
    return f"have a suffix that no reader knows ({suffix or 'none'})"


def _files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file with the reason why it cannot be read, if there is one; and folders that cannot be entered."""
    closed: list[Path] = []
    inside = folder.resolve()
    for place, folders, files in os.walk(
        folder, onerror=lambda error: closed.append(Path(str(error.filename)))
    ):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(place, name)
            if not name.startswith(".") and path.is_file():
                yield path, _closed(path, inside)
    for path in closed:
        if path == folder:
            raise PermissionError(13, os.strerror(13), str(folder))
        yield path, "are folders that this user may not enter"


def _closed(path: Path, inside: Path) -> str:
    """Why a file is not read; a link in somebody else's folder may lead to this user's keys."""
    if path.is_symlink() and not path.resolve().is_relative_to(inside):
        return "are links that lead out of the folder"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"
