"""Documentation pages in Markdown, cut to a document per section with product, version and page in sight; and long
documents, cut to a number of tokens. Cuts are made in the text, so that no character is broken.

A page may begin with front matter between lines of `---` (YAML) or `+++` (TOML); `title`, `product` and `version` (or
`versions`) are read from it, and where the text is from (url, date, language, licence, author). Values are taken as
they are written: `version: 3.10` is not a number. Headings, code and tables are those of CommonMark, found by a parser.
Headings of the first two levels begin a section, deeper ones stay inside theirs. A section's title says everything that
its own text leaves unsaid: `Halden H2 (3.1, 3.4): Pairing a sensor > The light stays amber`

A tokenizer reads a megabyte or so a second, and a text is mostly words that came before. So words are counted, each
with the whitespace in front of it and only once, and each document once: what lies between two places of it is the
difference of two sums. That is what a tokenizer gives, or a little more where it would join what stands at a seam. The
first pieces and documents are encoded as a whole too: a tokenizer that gives one of them more tokens than the sum of
its words has every one checked.
"""

import re
import tomllib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyromark import Options, events_with_range

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.text import encodable, trimmed
from scope_selfplay.base.values import Document
from scope_selfplay.base.yaml import YamlError, parse_yaml

_ANCHOR = re.compile(r"\s*(?:\{:?\s*#([\w.-]{1,80})[^{}]{0,80}\}|\[\[([\w.-]{1,80})\]\])\s*\Z")
"""As MkDocs, kramdown and Hugging Face's docs name a heading."""
_HASHES, _FENCE = re.compile(r"#{1,6}(?!\S)"), re.compile(r"`{3,}|~{3,}")
_MARKS = re.compile(r"\A#{1,6}(?!\S)|(?:\s#+|\n[\s>]*(?:=+|-+))?\s*\Z")
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
_TOML = r"[\w.\"'-]+\s*=|\[+[\w.-]+\]"
_BEGUN = {
    mark: re.compile(rf"\s*\Z|(?:\s|#.*\n)*+(?:{key})")
    for mark, key in (("---", _KEY.pattern), ("+++", _TOML))
}
_PROSE = re.compile(rf"\n\s*\n(?![\s#\[\]{{}}-]|{_TOML}|{_KEY.pattern})")
"""How front matter begins, and what no front matter has."""
_COLONS = re.compile(r"([\w.-]+:\s+)([^\s\"'\[\]{}|>&*!%@`#].*?:(?:\s.*)?)\s*$")


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
    chapters = [part.heading for part in parts if part.level == 1]
    heading, chapter = next(iter(chapters), ""), ""
    if not heading and not title and len(parts) > 1 and not any(map(str.strip, parts[0].lines)):
        # Many pages begin with a heading of the second level, and have no other title.
        heading = parts[1].heading
    named = front.get("title") or ("" if heading else title)
    if not deepest and named and parts[-1].heading != named:
        parts = [parts[0]._replace(lines=body)]
    page = (
        front.get("title") or heading or title or PurePosixPath(name).stem.replace("_", " ").replace("-", " ")
    )
    # Product and version, as a title begins with them.
    product, version = front.get("product", ""), front.get("version") or front.get("versions") or ""
    subject = f"{product} ({version})" if product and version else product or version
    sections: list[tuple[int, Document]] = []
    taken: dict[str, int] = {}
    for number, part in enumerate(parts):
        if part.level == 1 and len(chapters) > 1:
            chapter = part.heading
        content = trimmed("\n".join(part.lines))
        # The first heading of the first level is the page's own, unless there is text above it.
        leads = number == 0 or (number == 1 and part.heading == heading and not sections)
        anchor = "" if leads else unused(part.anchor, taken)
        if content:
            own = front.get("title") or chapter or page, chapter, part.heading
            title = " > ".join(dict.fromkeys(filter(None, own)))
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


def metadata_of(fields: Mapping[str, object]) -> dict[str, str]:
    """Where a document is from, as far as its fields say."""
    found = {name: encodable(str(fields[key])) for key, name in METADATA.items() if fields.get(key)}
    return {name: " ".join(value.split()) for name, value in found.items()}


def front_matter(text: str, place: str) -> tuple[Mapping[str, str], list[str], int]:
    """Its values as text, the lines below it, and the number of the first of those."""
    lines = text.replace("\r\n", "\n").split("\n")
    mark = lines[0].rstrip()
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == mark), 0)
    held = "\n".join(lines[1:end])
    # A page may begin with a rule, and have another one below its first paragraphs.
    if not end or mark not in _BEGUN or not _BEGUN[mark].match(held) or _PROSE.search(held):
        return {}, lines, 1
    values, read = (_toml if mark == "+++" else _yaml)(held, place), {}
    for key in _FRONT:
        value = values.get(key, "")
        words = value if isinstance(value, list) else [value]
        words = [str(each) for each in words if not isinstance(each, dict | list)]
        read[key] = encodable(" ".join(", ".join(words).split()))
    return read, lines[end + 1 :], end + 2


def _toml(text: str, place: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}, line 2: front matter is not valid TOML: {error}") from None


def _yaml(text: str, place: str) -> Mapping[str, Any]:
    lines, is_ours = list[str](), True
    # Keywords may be most of a file; an alias may be of what nobody asks for.
    has_alias = re.search(r"[\s\[{,]\*\w", text)
    for line in text.split("\n"):
        if not has_alias and (begun := _KEY.match(line)):
            is_ours = begun[1] in _FRONT
        # YAML would take `title: Halden: a guide` for a mapping in a mapping.
        if is_ours and (colons := _COLONS.match(line)):
            line = f"{colons[1]}'{colons[2].replace(chr(39), chr(39) * 2)}'"
        lines.append(line if is_ours else "")
    try:
        values = parse_yaml("\n".join(lines), 2, as_text=True).values
    except YamlError as error:
        raise CorpusError(
            f"{place}, line {error.line or 2}: front matter is not valid YAML: {error.problem}"
        ) from None
    return values if isinstance(values, dict) else {}


def _blocks(text: str) -> Iterator[tuple[str, int, int, int, str]]:
    """Kind, first line, the line behind it, how many lists and quotations are around it, and source, of what GitHub's
    Markdown takes for a heading, fenced code or a table.
    """
    # The parser takes a lone carriage return for the end of a line; the text has kept it.
    data = text.replace("\r", " ").encode("utf-8", "replace")
    depth = line = place = 0
    for event, span in events_with_range(data.decode(), options=Options.ENABLE_TABLES):
        if isinstance(event, dict) and (begun := event.get("Start")):
            kind = next(iter(begun)) if isinstance(begun, dict) else ""
            if kind in ("Heading", "CodeBlock", "Table") and begun != {"CodeBlock": "Indented"}:
                line += data.count(b"\n", place, span["start"])
                place = span["start"]
                source = data[place : span["end"]].decode().rstrip()
                yield kind, line, line + source.count("\n") + 1, depth, source
            depth += 1
        elif "End" in event:
            depth -= 1


def headings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Its first line, the line behind it, its level and words, of every heading that is in no list or quotation."""
    for kind, start, end, depth, source in _blocks(text):
        if kind == "Heading" and depth == 0:
            marks = _HASHES.match(source)
            level = len(marks[0]) if marks else 1 if source.endswith("=") else 2
            yield start, end, level, _MARKS.sub("", source).strip()


class AtomicBlock(NamedTuple):
    """The place of whole lines that are one piece of code or one table; a part of it needs `head` and `foot`."""

    start: int
    end: int
    head: str
    foot: str


def atomic_blocks(text: str) -> list[AtomicBlock]:
    """What of a text is no prose: fenced code, and tables with their head."""
    lines, found = text.split("\n"), list[AtomicBlock]()
    places = list(accumulate((len(line) + 1 for line in lines), initial=0))
    for kind, start, end, _, source in _blocks(text):
        if kind == "Table":
            found.append(AtomicBlock(places[start], places[end], "\n".join(lines[start : start + 2]), ""))
        elif fence := _FENCE.match(source):
            first = lines[start]
            # What marks an item begins another one at each repetition.
            before = re.sub(r"[^>\s]", " ", first[: first.find(fence[0])])
            found.append(AtomicBlock(places[start], places[end], first, before + fence[0]))
    return found


def _parts(lines: list[str], first_line: int, deepest: int) -> Iterator[_Part]:
    """Of a page as a whole (`deepest` 0) only a heading that it begins with is one."""
    part, begin = _Part(first_line, 0, "", "", []), 0
    # What comes behind a heading at the beginning cannot change it.
    looked_at = lines if deepest else lines[:8]
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


def unused(anchor: str, taken: dict[str, int]) -> str:
    """The anchor, numbered when the page has it already, as hosting sites do."""
    count = taken.get(anchor, 0)
    taken[anchor] = count + 1
    if count == 0:
        return anchor
    return unused(f"{anchor}-{count}", taken)


CountTokens = Callable[[Sequence[str]], list[int]]
"""Tokens of many texts, without special tokens."""
_WORD = re.compile(r"\s{0,32}\S{1,32}|\s{1,32}")
_BLOCK = 1 << 18
"""Characters of a text that are counted at once."""
_MOST_WORDS = 1 << 20
"""Words whose counts are remembered, in about 100 MB."""
_CHECKED = 64
"""Pieces that are encoded as a whole, to see that the sums hold."""


class _Counted(NamedTuple):
    """A text, where each of its words ends, and the tokens up to there."""

    text: str
    ends: "array[int]"
    sums: "array[int]"


class Chunker:
    """Cuts documents to pieces of at most `max_tokens` tokens, title line included; each keeps the title."""

    def __init__(self, max_tokens: int, count: CountTokens) -> None:
        self._limit, self._most, self._count = max_tokens, max_tokens, count
        self._known: dict[str, int] = {}
        self._checked = 0
        self._sums_hold = True

    def cut(self, document: Document, *, spare: int = 0) -> list[Document]:
        """A document that fits, `spare` tokens less than others, is returned as it is; else its pieces are `<id>#0`,
        `<id>#1`, ...

        A piece ends after the last sentence in its second half, else between words, else anywhere. Only whitespace at
        the cuts is lost. Code in fences and tables are kept whole where they fit; a part of one has a fence or the
        table's head of its own. Raises CorpusError when the title leaves no room for text.
        """
        self._most = self._limit - spare
        title = f"{document.title}\n" if document.title else ""
        (taken,) = self._count([title]) if title else (0,)
        counted = self._sums(document.text)
        if self._fits(title, document.text, taken + (counted.sums[-1] if counted.sums else 0)):
            return [document]
        pieces, found, room = list[str](), atomic_blocks(document.text), self._most - taken
        # With less room a fence would take most of a piece.
        while found and room >= 32 and not pieces:
            pieces = self._around(counted, found, title, room)
            if not all(self._fits(title, piece) for piece in pieces):
                pieces = []
            room = room * 7 // 8
        pieces = pieces or self._split(counted, 0, len(document.text), title, self._most - taken)
        if not pieces:
            raise CorpusError(
                f"document {document.id!r}: {self._most} tokens leave no room for text beside a title of {taken} "
                "tokens; raise the limit or shorten the title"
            )
        return [
            document.model_copy(update={"id": f"{document.id}#{number}", "text": piece})
            for number, piece in enumerate(pieces)
        ]

    def _around(self, counted: _Counted, found: Sequence[AtomicBlock], title: str, room: int) -> list[str]:
        """Pieces of a text with code and tables, cut outside of them where that is possible; none where it is not."""
        text = counted.text
        # What is begun is `before`, of as many tokens, and the text from a place on.
        pieces, before, held, begun, place = list[str](), "", 0, 0, 0
        for block in (*found, AtomicBlock(len(text) + 1, len(text) + 1, "", "")):
            for start, stop, is_prose in ((place, block.start, True), (block.start, block.end, False)):
                if held + self._tokens(counted, begun, stop) <= room:
                    continue
                pieces.append(before + text[begun:start])
                before, held, begun = "", 0, start
                if self._tokens(counted, start, stop) > room:
                    parts = (
                        self._split(counted, start, stop, title, room)
                        if is_prose
                        else self._parts(counted, block, title, room)
                    )
                    if not parts and text[start:stop].strip():
                        return []
                    *whole, before = parts or [""]
                    pieces += whole
                    before, begun = f"{before}\n", stop
                    held = sum(self._counts(_WORD.findall(before)))
            place = block.end
        return [piece.strip("\n").rstrip() for piece in (*pieces, before + text[begun:]) if piece.strip()]

    def _parts(self, counted: _Counted, block: AtomicBlock, title: str, room: int) -> list[str]:
        """Code or a table that does not fit, by lines; every part with its head and foot."""
        text, end, foot = counted.text, block.end - 1, f"\n{block.foot}" if block.foot else ""
        last = text.rfind("\n", 0, end) + 1
        if foot and text[last:end].lstrip("> \t").startswith(block.foot.lstrip("> \t")):
            end = last - 1
        room -= sum(self._counts(_WORD.findall(f"{block.head}\n") + _WORD.findall(foot)))
        begin = block.start + len(block.head) + 1
        parts = self._split(counted, begin, end, title, room, by_line=True)
        return [f"{block.head}\n{part}{foot}" for part in parts]

    def _sums(self, text: str) -> _Counted:
        counted, place, taken = _Counted(text, array("Q"), array("Q")), 0, 0
        while place < len(text):
            words = _WORD.findall(text, place, place + _BLOCK)
            if place + _BLOCK < len(text):
                # It may go on in the next block.
                words.pop()
            counted.ends.extend(islice(accumulate(map(len, words), initial=place), 1, None))
            counted.sums.extend(islice(accumulate(self._counts(words), initial=taken), 1, None))
            place, taken = counted.ends[-1], counted.sums[-1]
        return counted

    def _tokens(self, counted: _Counted, start: int, stop: int) -> int:
        """Of the words between two places; the first may lack what is in front of it, the last is whole."""
        text, ends, sums = counted
        stop = min(stop, len(text))
        if start >= stop:
            return 0
        first, last = bisect_right(ends, start), bisect_left(ends, stop)
        return sums[last] - sums[first] + self._counts([text[start : ends[first]]])[0]

    def _fits(self, title: str, text: str, tokens: int = 0) -> bool:
        """Of a piece, whose sum is small enough, or of a text of as many tokens by the sum of its words."""
        # Hardly a tokenizer joins three words' tokens to one.
        if tokens > 3 * self._most:
            return False
        if self._sums_hold and self._checked >= _CHECKED and tokens <= self._most:
            return True
        self._checked += 1
        (whole,) = self._count([title + text])
        if tokens <= self._most < whole:
            self._sums_hold = False
        return whole <= self._most

    def _split(
        self, counted: _Counted, start: int, end: int, title: str, room: int, *, by_line: bool = False
    ) -> list[str]:
        """Pieces of what lies between two places; none where one does not fit."""
        (text, ends, sums), pieces = counted, list[str]()
        blank, clean = ("\n", _line_cut) if by_line else (None, _clean_cut)
        end = start + len(text[start:end].rstrip(blank))
        while start < end:
            if not text[start].strip(blank):
                start += 1
                continue
            first = bisect_right(ends, start)
            # A word without the whitespace in front of it may have more tokens than with it.
            before = sums[first] - self._counts([text[start : ends[first]]])[0]
            fitting = bisect_right(sums, before + room, first)
            length = min(ends[fitting - 1], end) - start if fitting > first else 0
            if fitting == first:
                # A word too long for a piece: as many characters, each counted alone, as make one; 0 where none fits.
                characters = list(text[start : min(ends[first], end)])
                length = bisect_right(list(accumulate(self._counts(characters))), room)
            elif start + length < end:
                cut = clean(text[start : start + length + 1], length)
                length = cut if sums[bisect_right(ends, start + cut) - 1] > before else length
            while length and not self._fits(title, text[start : start + length]):
                length = _clean_cut(text[start : start + length], length * 15 // 16)
            if length == 0:
                return []
            pieces.append(text[start : start + length].rstrip())
            start += length
        return pieces

    def _counts(self, words: list[str]) -> list[int]:
        known = self._known
        unseen = list(set(words).difference(known))
        if len(known) + len(unseen) > _MOST_WORDS:
            known.clear()
            unseen = list(set(words))
        if unseen:
            known.update(zip(unseen, self._count(unseen), strict=True))
        return list(map(known.__getitem__, words))


def _clean_cut(text: str, length: int) -> int:
    """The best place to cut at or before `length`: after a sentence, else after a word, else right there."""
    sentence = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n\n", "。", "！", "？", "।", "။")
    for marks in (sentence, (" ", "\n", "\t")):
        # Most marks end in the whitespace after the cut, which may be the first character that no longer fits.
        ends = ((mark, mark[-1].isspace()) for mark in marks)
        cut = max(text.rfind(mark, length // 2, length + after) + len(mark) - after for mark, after in ends)
        if cut > length // 2:
            return cut
    return length


def _line_cut(text: str, length: int) -> int:
    """The end of the last line that fits, else as in prose."""
    return max(text.rfind("\n", 0, length + 1), 0) or _clean_cut(text, length)
