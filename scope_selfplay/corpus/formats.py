"""What kinds of files are read, a row of `FORMATS` each: a page of text, or records that are documents.

Most files become Markdown by a library that somebody else keeps. They are untrusted: a fault of a converter, of
whatever kind, is one reason why a file is not read.
"""

import csv
import gzip
import hashlib
import io
import json
import logging
import mailbox
import os
import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from email.headerregistry import HeaderRegistry, UnstructuredHeader
from email.parser import BytesParser
from email.policy import default as modern
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple, cast

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.text import language_in, one_line, trimmed, without_repeated
from scope_selfplay.net.json import json_lines, records_in
from scope_selfplay.store.files import cache_folder

INSTALL = "pip install 'scope-selfplay[{}]'"
LARGEST = 64 << 20
"""Bytes of one file; converters hold it several times over."""
MOST_UNPACKED = 256 << 20
"""Bytes of all parts of an Office file or a book, which are zip files, or of a compressed one."""
_CENTRAL = ("bs", "cs", "hr", "hu", "pl", "ro", "sk", "sl", "sq", "sr")


class NotConverted(Exception):
    """Why a file gives no text."""


class Converted(NamedTuple):
    """`title` is the file's own, as web pages have one; `metadata` where it is from, in whatever words."""

    title: str
    text: str
    metadata: Mapping[str, object] = {}


Records = Iterator[tuple[str, object]]


class Format(NamedTuple):
    """How files of some suffixes are read; `module` is what the extra brings."""

    suffixes: tuple[str, ...]
    read: Callable[[Path], Converted | Records]
    extra: str = ""
    module: str = ""
    is_markdown: bool = True
    holds_records: bool = False

    @property
    def is_there(self) -> bool:
        return not self.module or find_spec(self.module) is not None


def read_text(path: Path) -> Converted:
    """A text of whatever encoding, `.gz` or not. Raises NotConverted for bytes that are no text."""
    return _decoded(_bytes(path))


def _decoded(content: bytes) -> Converted:
    with suppress(UnicodeDecodeError):
        return Converted("", content.decode("utf-8-sig"))
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise NotConverted(f"is not UTF-8; convert it, or {INSTALL.format('documents')}") from None
    found = from_bytes(content)
    if (best := found.best()) is None:
        raise NotConverted("is no text in any encoding")
    western = next((each for each in found if each.encoding == "cp1252"), None)
    # By its letters alone a text is as much of Central as of Western Europe.
    if western and western.chaos - best.chaos < 0.005 and language_in(str(western)) not in _CENTRAL:
        best = western
    return Converted("", str(best), {"encoding": best.encoding})


def _bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if suffix_of(path.name) == ".gz" else path.open("rb") as file:
            content = file.read(MOST_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise NotConverted(f"is damaged ({error})") from None
    if len(content) > MOST_UNPACKED:
        raise NotConverted(f"is larger than {MOST_UNPACKED >> 20} MiB")
    return content


def _quietly(convert: Callable[[Path], Converted], path: Path) -> Converted:
    """By the user's cache where a file of this content was converted before. Raises NotConverted with the reason in a
    few words.
    """
    if path.stat().st_size > LARGEST:
        raise NotConverted(f"is larger than {LARGEST >> 20} MiB")
    known = f"{_converters()} {path.suffix.lower()} ".encode()
    named = hashlib.sha256(known + path.read_bytes()).hexdigest()
    kept = cache_folder() / "pages" / named[:2] / named
    with suppress(OSError, ValueError, TypeError, EOFError, zlib.error):
        return Converted(*json.loads(gzip.decompress(kept.read_bytes())))
    found = _converted(convert, path)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        # One that a crash damages is converted again.
        part = kept.with_name(f".{named}-{os.getpid()}")
        part.write_bytes(gzip.compress(json.dumps(found).encode(), 1))
        part.replace(kept)
    return found


@cache
def _converters() -> str:
    """What the text of a page depends on beside the page: this file and the libraries."""
    found = [hashlib.sha256(Path(__file__).read_bytes()).hexdigest()]
    for name in ("trafilatura", "lxml", "markitdown", "pdfminer.six", "pypandoc-binary", "openpyxl"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return " ".join(found)


def _converted(convert: Callable[[Path], Converted], path: Path) -> Converted:
    with (
        suppress(OSError, ValueError, zipfile.BadZipFile, NotImplementedError),
        zipfile.ZipFile(path) as archive,
    ):
        # As the archive says itself: no more of a part is read.
        if sum(part.file_size for part in archive.infolist()) > MOST_UNPACKED:
            raise NotConverted(f"unpacks to more than {MOST_UNPACKED >> 20} MiB")
    # Converters print and log what they think of a file.
    for name in ("pdfminer", "trafilatura", "htmldate", "pypandoc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    silent = warnings.catch_warnings(action="ignore")
    try:
        with silent, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            page = convert(path)
    except NotConverted:
        raise
    except Exception as error:  # noqa: BLE001 - the wall to a dozen libraries that read hostile files
        raise NotConverted(f"is damaged or not what its suffix says ({type(error).__name__})") from None
    text = _clean(page.text)
    if not text:
        raise NotConverted("holds no text (a scan?)")
    return Converted(" ".join(_clean(page.title).split()), text, page.metadata)


def _clean(text: str | None) -> str:
    """Without halves of surrogate pairs and NUL, which are no text and PDFs hold; and without the signs of anchors."""
    encodable = (text or "").encode("utf-8", "replace").decode().replace("\0", "")
    return trimmed(re.sub("[¶\uf0c1]$", "", encodable, flags=re.MULTILINE))


def _by_markitdown(path: Path) -> Converted:
    found = _markitdown().convert_local(str(path))
    return Converted(found.title or "", found.markdown)


_HEADED = re.compile(r"^#{1,6} ", re.MULTILINE)
_MENUS = "//nav | //footer | //aside | //*[@role='navigation'] | //*[starts-with(@class, 'nav')]"


@cache
def _markitdown() -> Any:
    """One converter for each suffix: the library's last resort is to take the bytes of a broken file for text."""
    from markitdown import MarkItDown, converters

    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    for name in ("Docx", "Epub", "Html", "Pdf", "Pptx"):
        converter.register_converter(getattr(converters, f"{name}Converter")())
    return converter


def _web_page(path: Path) -> Converted:
    """The main content of a page, without menus and footers."""
    import trafilatura
    from lxml.etree import strip_tags, tostring
    from trafilatura.metadata import extract_metadata

    tree = trafilatura.load_html(path.read_bytes())
    if tree is None:
        return Converted("", "")
    about = extract_metadata(tree, extensive=False)
    for block in tree.iter("pre"):
        # Else it is taken for prose, in which comments are headings.
        if block.find(".//code") is None:
            code = block.makeelement("code")
            code.text, block.text, block[:] = block.text_content(), None, [code]
    boxes = tree.xpath("//div[@class='titlepage']")
    for box in boxes:
        # DocBook's headings stand in boxes that are taken for those of a site, and its pages name no main part.
        strip_tags(box, "a")
        for each in box.iter():
            each.attrib.clear()
    for part in boxes[0].iterancestors("div") if boxes else ():
        if set(boxes) <= set(part.iter("div")):
            part.tag = "article"
            break
    extract = partial(
        trafilatura.extract, tree, output_format="markdown", include_formatting=True, include_comments=False
    )
    text = extract()
    menus, heads = {*tree.xpath(_MENUS)}, tree.iter("h2", "h3", "h4")
    if not _HEADED.search(text or "") and any(menus.isdisjoint(each.iterancestors()) for each in heads):
        # Of a page that names no main part paragraphs alone are taken at first.
        again = extract(favor_recall=True)
        text = again if _HEADED.search(again or "") else text
    # Code of several lines in a sentence has its fence behind words there (2.0), and all that follows would be code.
    text = re.sub(r"^((?:(?!```).)*[^`\s])[ \t]*```$", r"\1\n```", text or "", flags=re.MULTILINE)
    text = re.sub(r"^[ \t]+```$", "```", text, flags=re.MULTILINE)
    # Of a short page all is taken but its menus.
    if len(text) < 200:
        for menu in tree.xpath(_MENUS):
            menu.drop_tree()
        text = _of_html(tostring(tree, encoding="unicode"))
    said = {name: value for name, value in about.as_dict().items() if isinstance(value, str)} if about else {}
    return Converted(said.get("title", ""), text, said)


_OF_PANDOC = {
    ".rst": "rst",
    ".adoc": "asciidoc",
    ".asciidoc": "asciidoc",
    ".odt": "odt",
    ".org": "org",
    ".rtf": "rtf",
    ".tex": "latex",
    ".typ": "typst",
    ".mediawiki": "mediawiki",
    ".docbook": "docbook",
}


def _by_pandoc(path: Path) -> Converted:
    import pypandoc

    told = ["--sandbox", "--wrap=none", "--markdown-headings=atx", "--standalone"]
    name = _OF_PANDOC[path.suffix.lower()]
    convert = partial(pypandoc.convert_file, [str(path)], format=name, extra_args=told)
    if name in ("rst", "asciidoc"):
        source = _ELSEWHERE.sub("", read_text(path).text.replace("\r\n", "\n"))
        if name == "rst":
            # Pandoc reads prose here.
            source = _DOCTEST.sub(lambda found: f".. code:: python\n\n{indent(found[0], '   ')}", source)
        convert = partial(pypandoc.convert_text, source, format=name, extra_args=told)
    text = convert("gfm-raw_html")
    if _TABLE.search(text):
        # Markdown has no table with paragraphs or lists in it.
        tables = re.findall(r"<table.*?</table>", convert("gfm"), re.DOTALL)
        text = _TABLE.sub(lambda found: _of_html(tables.pop(0)).strip() if tables else found[0], text)
    return Converted("", _ESCAPED.sub(lambda found: found[3] or found[0], text))


_DOCTEST = re.compile(r"(?:(?<=\n\n)|\A)>>> .*(?:\n(?=[ \t]*\S).+)*")
_ELSEWHERE = re.compile(r"^(?:include::\S.*\[.*\]|[ \t]+:file: .*)$", re.MULTILINE)
"""Of other files, which are not there: no reason to read nothing."""
_TABLE = re.compile(r"^\[TABLE\]$", re.MULTILINE)
# Code comes first. At the beginning of a line `>` would begin a quotation.
_ESCAPED = re.compile(
    r"^[ \t>]*(`{3,})(?s:.*?)^[ \t>]*\1`*$|^(?: {4}|\t).*$|(?<!\\)(`+)(?!`).*?(?<!`)\2(?!`)|(?<!^)\\([<>\[\]_])",
    re.MULTILINE,
)


def _notebook(path: Path) -> Converted:
    """Texts as they are written, code and what it printed in fences."""
    book, parts = json.loads(read_text(path).text), list[str]()
    about = book.get("metadata", {})
    language = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get("name", "")
    for cell in book["cells"] if "cells" in book else book["worksheets"][0]["cells"]:
        source = "".join(cell.get("source") or cell.get("input") or ())
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        said = [
            each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.get("outputs", ())
        ]
        for text, name in ((source, language), *(("".join(each), "") for each in said)):
            if text.strip():
                longest = max(map(len, re.findall("`{3,}", text)), default=2)
                fence = "`" * (longest + 1)
                parts.append(f"{fence}{name}\n{text.rstrip()}\n{fence}")
    return Converted("", "\n\n".join(parts))


def _cell(value: object) -> str:
    text = "" if value is None else str(value).removesuffix(" 00:00:00")
    return " ".join(text.split()).replace("|", "\\|")


def _workbook(path: Path) -> Converted:
    import openpyxl

    parts = list[str]()
    for sheet in openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets:
        # Some programs say that a sheet has one cell.
        sheet.reset_dimensions()
        rows = [[*map(_cell, row)] for row in sheet.iter_rows(values_only=True)]
        width = max((place for row in rows for place, each in enumerate(row, start=1) if each), default=0)
        lines = [f"| {' | '.join([*row, *[''] * width][:width])} |" for row in rows if any(row)]
        if lines:
            parts.append("\n".join([f"## {sheet.title}\n", lines[0], "|" + " --- |" * width, *lines[1:]]))
    return Converted("", "\n\n".join(parts))


# With the line that says whose words they are. `>>> ` begins code, and a box has `>From` where `From` was written.
_SAYS = "wrote|writes|schrieb|écrit|escribió|escreveu|ha scritto|написал|пишет|写道|書きました|كتب"
_QUOTED = re.compile(
    rf"(?:^(?:On .{{,200}}\n)?.{{,200}}(?:{_SAYS}).{{,80}}[:：]\n+)?^>(?!>> |From ).*\n?(?:^>.*\n?)*"
    # Of programs that quote below: a line of dashes, and the headers.
    r"|^-{4,}[^\n-]{3,40}-{4,}\n(?:[^\s:]+: .*\n){2,}(?s:.*)",
    re.MULTILINE,
)
_SIGNED = re.compile(
    r"^-----BEGIN PGP SIGNED MESSAGE-----\n(?:\S.*\n)*|^-----BEGIN PGP SIGNATURE-----\n(?s:.*)|^-- \n(?:.*\n){,15}.*\Z",
    re.MULTILINE,
)
"""What a program, or the one who writes, puts around what is said."""


def _mails(path: Path) -> Records:
    """A message, or the threads of a box, whose answers quote what stands above."""
    headers, found, thread_of = HeaderRegistry(), dict[str, dict[str, str]](), dict[str, str]()
    mails = list[tuple[str, str, str]]()
    # Python fails on some names and addresses.
    headers.registry |= dict.fromkeys(("from", "message-id"), UnstructuredHeader)
    parser = BytesParser(policy=modern.clone(header_factory=headers))
    if path.suffix.lower() == ".eml":
        box: Any = [parser.parsebytes(_bytes(path))]
    else:
        box = mailbox.mbox(path, factory=cast(Any, parser.parse), create=False)
    for number, message in enumerate(box, start=1):
        said = (_body(message.get_body((kind,))) for kind in ("plain", "html"))
        text = next((text for text in said if text.strip()), "")
        text = trimmed(_SIGNED.sub("", text.replace("\r\n", "\n")))
        author, own = str(message["from"] or ""), _ids(message["message-id"]) or [f"{number}"]
        before = [*_ids(message["references"]), *_ids(message["in-reply-to"])]
        place = next((thread_of[each] for each in before if each in thread_of), f"{path}, message {number}")
        thread_of |= dict.fromkeys((*before, *own), place)
        if place in found:
            name = author.partition(" <")[0].strip('"')
            mails.append((place, f"\n\n{name}:\n\n", trimmed(_QUOTED.sub("", text))))
        else:
            about = {"title": message["subject"], "date": message["date"], "author": author}
            found[place] = {"text": ""} | {name: str(value) for name, value in about.items() if value}
            mails.append((place, "", text))
    texts = without_repeated([(f"{number}", text) for number, (_, _, text) in enumerate(mails)])
    for (place, before_it, whole), text in zip(mails, texts, strict=True):
        found[place]["text"] += before_it + (text or whole)
    yield from found.items()


def _body(part: Any) -> str:
    if part is None:
        return ""
    content, text = part.get_payload(decode=True) or b"", ""
    try:
        text = content.decode(part.get_content_charset("utf-8"))
    except (LookupError, ValueError):
        with suppress(NotConverted):
            text = _decoded(content).text
    text = text or content.decode("utf-8", "replace")
    return _of_html(text) if part.get_content_subtype() == "html" else text


def _of_html(text: str) -> str:
    """As it is without the extra `documents`, or where the converter fails on it."""
    with suppress(ImportError, RecursionError, ValueError):
        from markitdown.converters import HtmlConverter

        return HtmlConverter().convert_string(text).markdown
    return text


def _ids(header: Any) -> list[str]:
    """Some programs write after an id who wrote what and when, others no brackets around it, or no id."""
    text = str(header or "")
    return re.findall(r"<[^<>\s]+>", text) or [word for word in text.split() if "@" in word]


def _json(path: Path) -> Records:
    """A list of objects, the one list in an object (`{"Data": [...]}`), objects by their ids, or lines."""
    page = read_text(path)
    try:
        value = json.loads(page.text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from json_lines(path)
            return
        raise CorpusError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: JSON that cannot be read: {error}") from None
    found = records_in(value) if isinstance(value, Mapping) else value
    if not isinstance(found, list):
        raise CorpusError(f"{path}: holds no list of objects")
    for number, each in enumerate(found, start=1):
        if each is not None:
            yield f"{path}: row {number}", {**page.metadata, **each} if isinstance(each, Mapping) else each


def _separated(path: Path) -> Records:
    """A table with a head line, split at its commonest mark. DPR's tables have no head: question, answers."""
    csv.field_size_limit(sys.maxsize)
    _, text, about = read_text(path)
    separator = max("\t,;|", key=text.partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    head: list[str] = []
    # A value may hold line breaks: a record is found where it begins.
    following = 1
    try:
        for cells in lines:
            where, following = f"{path}:{following}", lines.line_num + 1
            if not any(map(str.strip, cells)):
                continue
            if not head:
                is_dpr = len(cells) == 2 and cells[1].startswith("[")
                head = ["question", "answers"] if is_dpr else cells
                if twice := [name for name in head if name and head.count(name) > 1]:
                    raise CorpusError(f"{where}: two columns are named {twice[0]!r}")
                if not is_dpr:
                    continue
            if len(cells) != len(head):
                names = ", ".join(map(one_line, head))
                raise CorpusError(
                    f"{where}: {len(cells)} columns, the first line has {len(head)} ({names}); a value with a line "
                    f"break or a {separator!r} stands in double quotes"
                )
            yield where, {**about, **dict(zip(head, cells, strict=True))}
    except csv.Error as error:
        raise CorpusError(f"{path}:{following}: {error}; quotes are around a whole value or none") from None


def _columns(path: Path) -> Records:
    """Parquet, or the Arrow stream that `save_to_disk` of Hugging Face's datasets writes."""
    import pyarrow.parquet

    is_parquet = suffix_of(path.name) == ".parquet"
    try:
        with pyarrow.memory_map(str(path)) as source:
            batches = (
                pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=1024)
                if is_parquet
                else pyarrow.ipc.open_stream(source)
            )
            records = (record for batch in batches for record in batch.to_pylist())
            yield from ((f"{path}: row {number}", record) for number, record in enumerate(records, start=1))
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        form = "parquet" if is_parquet else "an Arrow stream"
        raise CorpusError(f"{path}: not {form}: {str(error).partition(chr(10))[0]}") from None


FORMATS = (
    Format((".md", ".markdown", ".mdx"), read_text),
    Format(tuple(_OF_PANDOC), partial(_quietly, _by_pandoc), "pandoc", "pypandoc"),
    Format((".html", ".htm"), partial(_quietly, _web_page), "documents", "trafilatura"),
    Format((".docx", ".pptx", ".epub"), partial(_quietly, _by_markitdown), "documents", "markitdown"),
    Format((".xlsx",), partial(_quietly, _workbook), "documents", "openpyxl"),
    Format((".ipynb",), partial(_quietly, _notebook)),
    Format((".txt",), read_text, is_markdown=False),
    Format((".pdf",), partial(_quietly, _by_markitdown), "documents", "markitdown"),
    Format((".eml", ".mbox"), _mails, holds_records=True),
    Format((".jsonl", ".ndjson"), json_lines, holds_records=True),
    Format((".json",), _json, holds_records=True),
    Format((".csv", ".tsv"), _separated, holds_records=True),
    Format((".parquet", ".arrow"), _columns, holds_records=True),
)
"""Of pages: the better known their headings and paragraphs, the earlier."""
_BY_SUFFIX = {suffix: row for row in FORMATS for suffix in row.suffixes}
_COMPRESSED = (read_text, json_lines, _json, _separated)


def suffix_of(name: str) -> str:
    """As `PurePath(name).suffix.lower()`, without making a path of each of many thousand names."""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")
    return f".{suffix.lower()}" if stem else ""


def format_of(path: Path | str) -> Format | None:
    """The row of a file, by its suffix; of a `.gz` by the one before."""
    suffix = suffix_of(str(path))
    if suffix == ".gz":
        found = _BY_SUFFIX.get(suffix_of(str(path)[: -len(suffix)]))
        return found if found and found.read in _COMPRESSED else None
    return _BY_SUFFIX.get(suffix)
