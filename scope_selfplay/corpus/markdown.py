"""Documentation pages in Markdown: one document per section, with product, version and page in sight.

A page may begin with front matter between `---` lines; `title`, `product` and `version` (or `versions`) are
read from it, the rest is ignored. Values are taken as they are written: `version: 3.10` is not a number. Headings
of the first two levels begin a section, deeper ones stay inside theirs, and a line in a code fence is not a
heading. A section's title says everything that its own text leaves unsaid:

    Halden H2 (3.1, 3.4): Pairing a sensor > The light stays amber

PDF, HTML and Office files become Markdown by the library markitdown (the extra `documents`). They are untrusted: a
fault of a converter, of whatever kind, is one reason why a file is not read.
"""

import io
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document
from scope_selfplay.base.yaml import YamlError, parse_yaml

_MARKS = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|$)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ANCHOR = re.compile(r"\{#([A-Za-z0-9_.-]{1,80})\}")
_DEEPEST = 2

CONVERTED_SUFFIXES = (".pdf", ".html", ".htm", ".docx", ".pptx", ".xlsx", ".epub")
INSTALL = "pip install 'scope-selfplay[documents]'"
LARGEST = 64 << 20
"""Bytes of one file; converters hold it several times over."""
MOST_UNPACKED = 256 << 20
"""Bytes of all parts of an Office file or a book, which are zip files."""


class _Part(NamedTuple):
    """A heading (level 0: none, the beginning of the page) and the lines below it."""

    line: int
    level: int
    heading: str
    anchor: str
    lines: list[str]


def split_page(text: str, *, name: str, place: str, title: str = "") -> list[tuple[int, Document]]:
    """The sections of one page that hold text, each with the line where it begins, counted from 1.

    `name` is the page's path below the corpus, `place` names it in errors, `title` is the page's where it says none.

    Ids are `<name>#<anchor>`, where the anchor is that of the heading (`{#anchor}`), else its words joined by
    hyphens, numbered where one occurs again; text above every section has the page's name. Raises
    CorpusError for front matter that cannot be read, and for a page without text.
    """
    front, body, first_line = front_matter(text, place)
    parts = list(_parts(body, first_line))
    heading = next((part.heading for part in parts if part.level == 1), "")
    page = (
        front.get("title") or heading or title or PurePosixPath(name).stem.replace("_", " ").replace("-", " ")
    )
    subject = subject_of(front)
    sections: list[tuple[int, Document]] = []
    taken: dict[str, int] = {}
    for number, part in enumerate(parts):
        content = "\n".join(part.lines).strip()
        # The first heading of the first level is the page's own, unless there is text above it.
        leads = number == 0 or (number == 1 and part.level == 1 and not sections)
        anchor = "" if leads else _unused(part.anchor, taken)
        if content:
            title = page if leads or part.heading in ("", page) else f"{page} > {part.heading}"
            document = Document(
                id=f"{name}#{anchor}" if anchor else name,
                title=f"{subject}: {title}" if subject else title,
                text=content,
                source=name,
            )
            sections.append((part.line, document))
    if not sections:
        raise CorpusError(f"{place}: holds no text; fill the file or remove it")
    return sections


def subject_of(front: Mapping[str, str]) -> str:
    """Product and version, as a title begins with them."""
    product, version = front.get("product", ""), front.get("version") or front.get("versions") or ""
    return f"{product} ({version})" if product and version else product or version


def front_matter(text: str, place: str) -> tuple[Mapping[str, str], list[str], int]:
    """Its values as text, the lines below it, and the number of the first of those."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return {}, lines, 1
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), None)
    if end is None:
        raise CorpusError(f"{place}, line 1: front matter that never ends; close it with a line ---")
    return _values("\n".join(lines[1:end]), place), lines[end + 1 :], end + 2


def _values(text: str, place: str) -> Mapping[str, str]:
    try:
        values = parse_yaml(text, 2, as_text=True).values
    except YamlError as error:
        raise CorpusError(
            f"{place}, line {error.line or 2}: front matter is not valid YAML: {error.problem}"
        ) from None
    if values in (None, ""):
        return {}
    if not isinstance(values, dict):
        raise CorpusError(f"{place}, line 2: front matter holds no `key: value` lines")
    read = {}
    for key in ("title", "product", "version", "versions"):
        value = values.get(key, "")
        words = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str) for word in words):
            raise CorpusError(f"{place}: front matter gives {key} as a mapping; expected text or a list")
        read[key] = " ".join(", ".join(words).split())
    return read


def _parts(lines: list[str], first_line: int) -> Iterator[_Part]:
    part = _Part(first_line, 0, "", "", [])
    fence = ""
    for number, line in enumerate(lines, start=first_line):
        mark = _FENCE.match(line)
        if fence:
            closes = mark and mark[1].startswith(fence) and not line[mark.end() :].strip()
            fence = "" if closes else fence
        elif mark:
            fence = mark[1]
        marks = None if fence or mark else _MARKS.match(line)
        if marks is None or len(marks[1]) > _DEEPEST:
            part.lines.append(line)
            continue
        yield part
        heading, anchor = _heading(line[marks.end() :])
        part = _Part(number, len(marks[1]), heading, anchor, [])
    yield part


def _heading(text: str) -> tuple[str, str]:
    """A heading's words and its anchor."""
    words = text.strip()
    named = _ANCHOR.fullmatch(words, max(0, words.rfind("{#")))
    if named:
        words = words[: named.start()].rstrip()
    words = words.rstrip("#").rstrip() if words.rstrip("#").endswith((" ", "\t")) else words
    kept = "".join(each if each.isalnum() or each in " -_." else " " for each in words.lower())
    return words, named[1] if named else "-".join(kept.split()) or "section"


def _unused(anchor: str, taken: dict[str, int]) -> str:
    """The anchor, numbered when the page has it already, as hosting sites do."""
    count = taken.get(anchor, 0)
    taken[anchor] = count + 1
    if count == 0:
        return anchor
    return _unused(f"{anchor}-{count}", taken)


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
    # Converters print and log what they think of a file.
    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    silent = warnings.catch_warnings(action="ignore")
    try:
        with silent, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = _converter().convert_local(str(path))
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


@cache
def _converter() -> Any:
    """One converter for each suffix: the library's last resort is to take the bytes of a broken file for text."""
    from markitdown import MarkItDown, converters

    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    for name in ("Docx", "Epub", "Html", "Pdf", "Pptx", "Xlsx"):
        converter.register_converter(getattr(converters, f"{name}Converter")())
    return converter
