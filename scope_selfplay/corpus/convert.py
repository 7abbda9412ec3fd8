"""PDF, HTML and Office files as Markdown, by the library markitdown (the extra `documents`).

The files are untrusted: a fault of a converter, of whatever kind, is one reason why a file is not read.
"""

import io
import logging
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

CONVERTED_SUFFIXES = (".pdf", ".html", ".htm", ".docx", ".pptx", ".xlsx", ".epub")
INSTALL = "pip install 'scope-selfplay[documents]'"
LARGEST = 64 << 20
"""Bytes of one file; converters hold it several times over."""


MOST_UNPACKED = 256 << 20
"""Bytes of all parts of an Office file or a book, which are zip files."""


class NotConverted(Exception):
    """Why a file gives no text."""


def can_convert() -> bool:
    return find_spec("markitdown") is not None


class Converted(NamedTuple):
    """`title` is the file's own, as HTML and Office files have one; empty where there is none."""

    title: str
    text: str


def to_markdown(path: Path) -> Converted:
    """A file's text as Markdown. Raises NotConverted with the reason in a few words."""
    if path.stat().st_size > LARGEST:
        raise NotConverted(f"is larger than {LARGEST >> 20} MiB")
    if _unpacked_bytes(path) > MOST_UNPACKED:
        raise NotConverted(f"unpacks to more than {MOST_UNPACKED >> 20} MiB")
    try:
        found = _quietly(lambda: _converter().convert_local(str(path)))
    except Exception as error:  # noqa: BLE001 - the wall to a dozen libraries that read hostile files
        raise NotConverted(f"is damaged or not what its suffix says ({type(error).__name__})") from None
    text = _clean(found.markdown)
    if not text:
        raise NotConverted("holds no text (a scan?)")
    return Converted(" ".join(_clean(found.title).split()), text)


def _unpacked_bytes(path: Path) -> int:
    """As the archive says itself: no more of a part is read. 0 for what is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(part.file_size for part in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return 0


def _clean(text: str | None) -> str:
    """Without halves of surrogate pairs and without NUL, which are no text; PDFs hold both."""
    return (text or "").encode("utf-8", "replace").decode().replace("\0", "").strip()


def _quietly(work: Callable[[], Any]) -> Any:
    """Converters print and log what they think of a file."""
    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return work()


@cache
def _converter() -> Any:
    """One converter for each suffix: the library's last resort is to take the bytes of a broken file for text."""
    from markitdown import MarkItDown, converters

    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    for name in ("Docx", "Epub", "Html", "Pdf", "Pptx", "Xlsx"):
        converter.register_converter(getattr(converters, f"{name}Converter")())
    return converter
