"""Documentation pages in Markdown: one document per section, with product, version and page in sight.

A page may begin with front matter between `---` lines; `title`, `product` and `version` (or `versions`) are
read from it, and where the text is from (url, date, language, licence, author). Values are taken as they are written:
`version: 3.10` is not a number. Headings, code and tables are those of CommonMark, found by a parser. Headings of the
first two levels begin a section, deeper ones stay inside theirs. A section's title says everything that its own text
leaves unsaid:

    Halden H2 (3.1, 3.4): Pairing a sensor > The light stays amber
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.text import encodable
from scope_selfplay.base.values import Document
from scope_selfplay.base.yaml import YamlError, parse_yaml

_ANCHOR = re.compile(r"\s*(?:\{:?\s*#([\w.-]{1,80})[^{}]{0,80}\}|\[\[([\w.-]{1,80})\]\])\s*\Z")
"""As MkDocs, kramdown and Hugging Face's docs name a heading."""
_HEADING_LIKE = re.compile(r"^ {0,3}(?:#{1,6}(?:[ \t]|$)|=+[ \t]*$|-+[ \t]*$)", re.MULTILINE)
_ATOMIC_LIKE = re.compile(r"```|~~~|^[ \t]*\|?[ \t]*:?-+:?[ \t]*\|", re.MULTILINE)
_LONGEST_BEGINNING = 8
_WORDS = r"(?:[^\s\d#>*+\-_=~`<|:]|`(?!``)|\*\*\w)[^\n>]*+\n"
_PROSE = re.compile(rf"(?<=\n\n)(?:(?:[*+-] )?+{_WORDS}(?:(?:[*+-] |[ \t]++)?+{_WORDS})*+\n++)++")
"""Paragraphs and flat lists between blank lines: nothing in them begins or ends a heading, code, a table or HTML."""
METADATA = {
    **{name: name for name in ("url", "date", "language", "licence", "author", "encoding")},
    "lang": "language",
    "license": "licence",
    "link": "url",
    "canonical_url": "url",
}
"""What is said of a document beside its text, by the names that files have for it."""
_FRONT = ("title", "product", "version", "versions", *METADATA)
_KEY = re.compile(r"[\"']?([\w.-]+)[\"']?\s*:(?:\s|$)")


class _Part(NamedTuple):
    """A heading (level 0: none, the beginning of the page) and the lines below it."""

    line: int
    level: int
    heading: str
    anchor: str
    lines: list[str]


def split_page(
    text: str,
    *,
    name: str,
    place: str,
    title: str = "",
    about: Mapping[str, str] | None = None,
    deepest: int = 2,
) -> list[tuple[int, Document]]:
    """The sections of one page that hold text, each with the line where it begins, counted from 1.

    `name` is the page's path below the corpus, `place` names it in errors, `title` is the page's where it says none.
    Headings down to level `deepest` begin a section; with 0 there is one, and a heading at its beginning is its title.

    Ids are `<name>#<anchor>`, where the anchor is that of the heading (`{#anchor}`), else its words joined by
    hyphens, numbered where one occurs again; text above every section has the page's name. Raises
    CorpusError for front matter that cannot be read, and for a page without text.
    """
    front, body, first_line = front_matter(text, place)
    parts = list(_parts(body, first_line, deepest))
    heading = next((part.heading for part in parts if part.level == 1), "")
    if not heading and len(parts) > 1 and not any(map(str.strip, parts[0].lines)):
        # Many pages begin with a heading of the second level, and have no other title.
        heading = parts[1].heading
    page = (
        front.get("title") or heading or title or PurePosixPath(name).stem.replace("_", " ").replace("-", " ")
    )
    subject = subject_of(front)
    sections: list[tuple[int, Document]] = []
    taken: dict[str, int] = {}
    for number, part in enumerate(parts):
        content = "\n".join(part.lines).strip()
        # The first heading of the first level is the page's own, unless there is text above it.
        leads = number == 0 or (number == 1 and part.heading == heading and not sections)
        anchor = "" if leads else _unused(part.anchor, taken)
        if content:
            title = page if leads or part.heading in ("", page) else f"{page} > {part.heading}"
            document = Document(
                id=f"{name}#{anchor}" if anchor else name,
                title=f"{subject}: {title}" if subject else title,
                text=content,
                source=name,
                metadata=metadata_of(front) | dict(about or {}),
            )
            sections.append((part.line, document))
    if not sections:
        raise CorpusError(f"{place}: has headings alone; fill it, or read it whole (text_files)")
    return sections


def subject_of(front: Mapping[str, str]) -> str:
    """Product and version, as a title begins with them."""
    product, version = front.get("product", ""), front.get("version") or front.get("versions") or ""
    return f"{product} ({version})" if product and version else product or version


def metadata_of(fields: Mapping[str, object]) -> dict[str, str]:
    """Where a document is from, as far as its fields say."""
    found = {name: encodable(str(fields[key])) for key, name in METADATA.items() if fields.get(key)}
    return {name: " ".join(value.split()) for name, value in found.items()}


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
    lines, is_ours = list[str](), True
    # Keywords may be most of a file; an alias may be of what nobody asks for.
    has_alias = re.search(r"[\s\[{,]\*\w", text)
    for line in text.split("\n"):
        if not has_alias and (begun := _KEY.match(line)):
            is_ours = begun[1] in _FRONT
        lines.append(line if is_ours else "")
    try:
        values = parse_yaml("\n".join(lines), 2, as_text=True).values
    except YamlError as error:
        raise CorpusError(
            f"{place}, line {error.line or 2}: front matter is not valid YAML: {error.problem}"
        ) from None
    if values in (None, ""):
        return {}
    if not isinstance(values, dict):
        raise CorpusError(f"{place}, line 2: front matter holds no `key: value` lines")
    read = {}
    for key in _FRONT:
        value = values.get(key, "")
        words = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str) for word in words):
            raise CorpusError(f"{place}: front matter gives {key} as a mapping; expected text or a list")
        read[key] = " ".join(", ".join(words).split())
    return read


@cache
def _parser(*, with_tables: bool) -> MarkdownIt:
    """Blocks alone: what is inside a line is not looked at, nor the targets of links."""
    parser = MarkdownIt("commonmark").disable("reference")
    parser.core.ruler.disable(["inline", "text_join"])
    return parser.enable("table") if with_tables else parser


def _tokens(text: str, *, with_tables: bool = False) -> list[Token]:
    """Prose takes most of a parser's time and decides nothing: the parser is given its lines without their words."""
    # The parser takes a lone carriage return for the end of a line; the text has kept it.
    return _parser(with_tables=with_tables).parse(_PROSE.sub(_without_words, text.replace("\r", " ")))


def _without_words(prose: re.Match[str]) -> str:
    """As many lines, of which the first closes what is open, or leaves a list open as the last ones do."""
    last = prose[0].rstrip("\n").rpartition("\n\n")[2]
    return ("- x" if re.search(r"^[*+-] ", last, re.MULTILINE) else "x") + "\n" * prose[0].count("\n")


def headings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Its first line, the line behind it, its level and words, of every heading that is in no list or quotation."""
    if not _HEADING_LIKE.search(text):
        return
    tokens = _tokens(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            yield token.map[0], token.map[1], int(token.tag[1]), tokens[place + 1].content


class AtomicBlock(NamedTuple):
    """Lines `start` to before `end` that are one piece of code or one table; a part of it needs `head` and `foot`."""

    start: int
    end: int
    head: str
    foot: str


def atomic_blocks(text: str) -> list[AtomicBlock]:
    """What of a text is no prose: fenced code, and tables with their head."""
    if not _ATOMIC_LIKE.search(text):
        return []
    lines, found = text.split("\n"), list[AtomicBlock]()
    for token in _tokens(text, with_tables=True):
        if not token.map or (found and token.map[0] < found[-1].end):
            continue
        start, end = token.map
        while end > start and not lines[end - 1].strip():
            end -= 1
        if token.type == "fence":
            indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
            found.append(AtomicBlock(start, end, lines[start], indent + token.markup))
        elif token.type == "table_open":
            found.append(AtomicBlock(start, end, "\n".join(lines[start : start + 2]), ""))
    return found


def _parts(lines: list[str], first_line: int, deepest: int) -> Iterator[_Part]:
    """Of a page as a whole (`deepest` 0) only a heading that it begins with is one."""
    part, begin = _Part(first_line, 0, "", "", []), 0
    # What comes behind a heading at the beginning cannot change it.
    looked_at = lines if deepest else lines[:_LONGEST_BEGINNING]
    for start, end, level, words in headings("\n".join(looked_at)):
        if level <= deepest or not (deepest or begin or any(map(str.strip, lines[:start]))):
            yield part._replace(lines=lines[begin:start])
            heading, anchor = _heading(words)
            part, begin = _Part(first_line + start, level, heading, anchor, []), end
    yield part._replace(lines=lines[begin:])


def _heading(text: str) -> tuple[str, str]:
    """A heading's words and its anchor."""
    words = " ".join(text.split())
    named = _ANCHOR.search(words)
    if named:
        words = words[: named.start()].rstrip()
    kept = "".join(each if each.isalnum() or each in " -_." else " " for each in words.lower())
    return words, (named[1] or named[2]) if named else "-".join(kept.split()) or "section"


def _unused(anchor: str, taken: dict[str, int]) -> str:
    """The anchor, numbered when the page has it already, as hosting sites do."""
    count = taken.get(anchor, 0)
    taken[anchor] = count + 1
    if count == 0:
        return anchor
    return _unused(f"{anchor}-{count}", taken)
