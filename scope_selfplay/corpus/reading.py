"""A path to documents. What the user gives is untrusted: every fault is one line with file and place.

A file is DPR's TSV (`.tsv`, `.tsv.gz`), else JSON lines, whatever its name. How a folder is read follows from its
domain (`corpus_reader` in domain.yaml) or the config (`corpus.reader`), else by `text_files`. A reader yields every
document with its place, in an order that follows from the names alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from scope_selfplay.corpus.conversion import (
    CONVERTED_SUFFIXES,
    INSTALL,
    Converted,
    NotConverted,
    can_convert,
    to_markdown,
)
from scope_selfplay.corpus.markdown import front_matter, split_page, subject_of
from scope_selfplay.corpus.sampling import first_shuffled
from scope_selfplay.corpus.survey import MARKDOWN_SUFFIXES, survey
from scope_selfplay.errors import CorpusError, did_you_mean
from scope_selfplay.passage_files import is_passage_file, read_passages
from scope_selfplay.schemas import CorpusReader, Document
from scope_selfplay.wire.strict_json import is_encodable, load_strict

Skip = Callable[[Path, str], None]
"""Is told of each file that is not read, with the reason."""
Reader = Callable[[Path, Skip], Iterator[tuple[str, Document]]]

LARGEST_WHOLE = 1 << 30
"""Bytes of the largest file whose documents a run holds all at once: three to four times as much in memory."""


def _say_nothing(path: Path, reason: str) -> None: ...


def read_documents(
    path: Path, reader: CorpusReader | None = None, skip: Skip = _say_nothing
) -> list[Document]:
    """The documents of a file or of a folder, in file order.

    - `jsonl`: a line is `{"id", "title", "text"}`, or `{"id", "contents"}` with the title as the first line of
      the contents (the wiki-18 form); other fields are ignored, blank lines skipped.
    - a `.tsv` or `.tsv.gz` has id, text and title, as DPR's Wikipedia has them (`passage_files`).
    - `text_files`: each `.txt` and `.md` file below a folder; its id is its path below the folder, its title a
      leading `# heading`, else that of its front matter, else its name. Hidden files are skipped.
    - `markdown_sections`: each section of each Markdown page below a folder, see `markdown.split_page`.
    - Both read PDF, HTML, EPUB and Office files as the Markdown that `conversion` makes of them.

    Raises CorpusError, with file and line, for anything that cannot be read, an id that occurs twice, no document at
    all, or a file too large to be held.
    """
    if path.is_file() and path.stat().st_size > LARGEST_WHOLE:
        raise CorpusError(
            f"{path}: has {path.stat().st_size / 1e9:.1f} GB, and a run holds its documents in memory; set "
            "corpus.sample, such as 100000, and search all of them through a retriever (search.url)"
        )
    documents: list[Document] = []
    places: dict[str, str] = {}
    for place, document in _located(path, reader, skip):
        if document.id in places:
            raise CorpusError(
                f"{place}: the id {document.id!r} is already used at {places[document.id]}; ids must be unique"
            )
        places[document.id] = place
        documents.append(document)
    return documents


def read_sample(path: Path, reader: CorpusReader | None, count: int, *, seed: int) -> list[Document]:
    """The first `count` of the documents shuffled by the seed. All lines are checked, only these documents are held."""
    located = _located(path, reader, _say_nothing)
    return first_shuffled((document for _, document in located), count, seed=seed)


def _located(path: Path, reader: CorpusReader | None, skip: Skip) -> Iterator[tuple[str, Document]]:
    """Every document with its file and line."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path}: holds no documents: a pipe or a device; write the documents to a file")
    if path.is_file() and is_passage_file(path):
        yield from read_passages(path)
        return
    if not path.is_dir():
        chosen = CorpusReader.JSONL
    elif reader is CorpusReader.JSONL:
        raise CorpusError(f"{path}: is a folder, and the reader jsonl reads a file; give the file in it")
    else:
        chosen = reader or CorpusReader.TEXT_FILES
    readers: dict[CorpusReader, Reader] = {
        CorpusReader.JSONL: _read_jsonl,
        CorpusReader.TEXT_FILES: _read_text_files,
        CorpusReader.MARKDOWN_SECTIONS: _read_sections,
    }
    expected = "a JSONL file or a folder with .txt or .md files"
    if chosen is CorpusReader.MARKDOWN_SECTIONS:
        expected = "a folder with Markdown pages (.md)"
    expected += (
        f"; PDF, HTML and Office files need {INSTALL}" if not can_convert() else ", PDF, HTML or Office files"
    )
    empty = True
    skipped: list[str] = []

    def note(file: Path, reason: str) -> None:
        skipped.append(f"{file.name} ({reason})")
        skip(file, reason)

    try:
        for located in readers[chosen](path, note):
            empty = False
            yield located
    except OSError as error:
        fault = error.strerror or error
        raise CorpusError(f"{path}: cannot be read as a corpus: {fault}; give {expected}") from error
    if empty:
        found = f" ({len(skipped)} files are not read, such as {skipped[0]})" if skipped else ""
        raise CorpusError(f"{path}: holds no documents{found}; expected {expected}")


def _read_jsonl(path: Path, skip: Skip) -> Iterator[tuple[str, Document]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}, line {number}"
            text = _decoded(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, place)
            if text.strip():
                yield place, _parse_line(text.rstrip("\r\n"), place)


def _parse_line(line: str, place: str) -> Document:
    try:
        fields = load_strict(line)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at").removesuffix(" starting")
        raise CorpusError(
            f"{place}: damaged at character {error.pos + 1}: {fault}; mend the line or take it out"
        ) from None
    except ValueError as error:
        raise CorpusError(f"{place}: damaged: {error}; mend the line or take it out") from None
    if not isinstance(fields, dict):
        raise CorpusError(f'{place}: expected an object with "id", "title" and "text", found {_kind(fields)}')
    if "contents" in fields and "text" not in fields:
        title, _, text = _text_field(fields, "contents", place).partition("\n")
        title = title.strip().removeprefix('"').removesuffix('"')
        if not text.strip():
            raise CorpusError(f'{place}: "contents" needs the title on its first line and text after it')
    else:
        title, text = (_text_field(fields, name, place, blank=name == "title") for name in ("title", "text"))
    source = _text_field({"source": "", **fields}, "source", place, blank=True)
    return Document(
        id=_text_field(fields, "id", place), title=title.strip(), text=text.strip(), source=source
    )


def _text_field(fields: Mapping[str, object], name: str, place: str, *, blank: bool = False) -> str:
    if name not in fields:
        hint = did_you_mean(name, fields, '; did you mean to rename "{}"?')
        found = ", ".join(map(repr, fields))[:200] or "none"
        raise CorpusError(f'{place}: the field "{name}" is missing, found {found}{hint}')
    value = fields[name]
    if not isinstance(value, str):
        raise CorpusError(f'{place}: "{name}" must be text, found {_kind(value)}')
    if not blank and not value.strip():
        raise CorpusError(f'{place}: "{name}" must not be blank')
    return value


def _read_text_files(folder: Path, skip: Skip) -> Iterator[tuple[str, Document]]:
    for name, path, page in _files_below(folder, CorpusReader.TEXT_FILES, skip):
        title, text = page.title or path.stem.replace("_", " ").replace("-", " "), page.text.strip()
        subject = ""
        if path.suffix.lower() in MARKDOWN_SUFFIXES and text.startswith("---"):
            # A text may begin with a rule, too.
            with suppress(CorpusError):
                front, body, _ = front_matter(text, str(path))
                title, text, subject = front.get("title") or title, "\n".join(body).strip(), subject_of(front)
        heading, _, rest = text.partition("\n")
        if heading.startswith("# "):
            title, text = heading.removeprefix("# ").strip(), rest.strip()
        if not text:
            raise CorpusError(f"{path}: holds no text; fill the file or remove it")
        yield str(path), Document(id=name, title=f"{subject}: {title}" if subject else title, text=text)


def _read_sections(folder: Path, skip: Skip) -> Iterator[tuple[str, Document]]:
    for name, path, page in _files_below(folder, CorpusReader.MARKDOWN_SECTIONS, skip):
        for line, document in split_page(page.text, name=name, place=str(path), title=page.title):
            yield f"{path}, line {line}", document


def _files_below(folder: Path, reader: CorpusReader, skip: Skip) -> Iterator[tuple[str, Path, Converted]]:
    """Name below the folder, path and content of every file that a reader reads, sorted by path."""
    found = survey(folder, reader)
    for path, reason in found.skipped.items():
        skip(path, reason)
    for path in found.read:
        name = path.relative_to(folder).as_posix()
        if not is_encodable(name):
            raise CorpusError(f"{path!r}: the file's name is not UTF-8; rename it")
        if path.suffix.lower() in CONVERTED_SUFFIXES:
            try:
                yield name, path, to_markdown(path)
            except NotConverted as fault:
                skip(path, str(fault))
        else:
            yield (
                name,
                path,
                Converted("", _decoded(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path))),
            )


def _decoded(raw: bytes, place: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{place}: not UTF-8 at byte {error.start + 1}; convert the file to UTF-8"
        ) from None


def _kind(value: object) -> str:
    number, null = "a number", type(None)
    names = {null: "null", bool: "true or false", int: number, float: number, str: "text", list: "a list"}
    return names.get(type(value), "an object")
