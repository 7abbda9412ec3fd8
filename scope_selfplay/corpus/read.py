"""A path to documents. What the user gives is untrusted: every fault is one line with file and place.

A file is DPR's TSV (`.tsv`, `.tsv.gz`), Parquet (`.parquet`), else JSON lines (`.gz` or not), whatever its name. How a
folder is read follows from its domain (`corpus_reader` in domain.yaml), else by `text_files`. Every document comes with
its place, in an order that follows from the names alone. Runs and the index builder read alike.
"""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.base.errors import CorpusError, did_you_mean
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.text import encodable
from scope_selfplay.base.values import CorpusReader, Document
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.cut import Chunker, CountTokens
from scope_selfplay.corpus.markdown import (
    CONVERTED_SUFFIXES,
    INSTALL,
    Converted,
    NotConverted,
    can_convert,
    front_matter,
    split_page,
    subject_of,
    to_markdown,
)
from scope_selfplay.corpus.sample import first_shuffled
from scope_selfplay.corpus.world import HELD_OUT, embedded_documents
from scope_selfplay.net.json import load_strict

MARKDOWN_SUFFIXES = (".md", ".markdown")
TEXT_SUFFIXES = (*MARKDOWN_SUFFIXES, ".txt")
_LINES = (".jsonl", ".json", ".tsv", ".gz", ".csv", ".parquet")
_SHOWN = 3
LONGEST_LINE = 1 << 24
LARGEST_WHOLE = 1 << 30
"""Bytes of the largest file whose documents a run holds all at once: three to four times as much in memory."""
WORTH_A_LINE = 5_000_000
"""Characters of a corpus that take more than a moment to cut."""
Skipped = dict[Path, str]
"""Gets each file that is not read, with the reason."""
Located = Iterator[tuple[str, Document]]
"""Documents with their file and line."""


def read_documents(
    path: Path, reader: CorpusReader | None = None, skipped: Skipped | None = None
) -> list[Document]:
    """The documents of a file or of a folder, in file order.

    - `jsonl`: a line is `{"id", "title", "text"}`, or `{"id", "contents"}` with the title as the first line of
      the contents (the wiki-18 form); other fields are ignored, blank lines skipped. Rows of Parquet are read alike.
    - a `.tsv` or `.tsv.gz` has id, text and title, as DPR's Wikipedia has them.
    - `text_files`: each `.txt` and `.md` file below a folder; its id is its path below the folder, its title a
      leading `# heading`, else that of its front matter, else its name. Hidden files are skipped.
    - `markdown_sections`: each section of each Markdown page below a folder, see `markdown.split_page`.
    - Both read PDF, HTML, EPUB and Office files as the Markdown that `convert` makes of them.

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
    for place, document in located_documents(path, reader, skipped):
        if document.id in places:
            raise CorpusError(
                f"{place}: the id {document.id!r} is already used at {places[document.id]}; ids must be unique"
            )
        places[document.id] = place
        documents.append(document)
    return documents


def read_sample(path: Path, reader: CorpusReader | None, count: int, *, seed: int) -> list[Document]:
    """The first `count` of the documents shuffled by the seed. All lines are checked, only these documents are held."""
    located = located_documents(path, reader)
    return first_shuffled((document for _, document in located), count, seed=seed)


def located_documents(
    path: Path, reader: CorpusReader | None = None, skipped: Skipped | None = None, *, lenient: bool = False
) -> Located:
    """Every document with its file and line, one at a time.

    Raises as `read_documents`, but for ids that occur twice. `lenient` takes lines without an id for their number, ids
    that are numbers, and what has no title or no text, as published corpora have them.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path}: holds no documents: a pipe or a device; write the documents to a file")
    if path.is_dir() and reader is CorpusReader.JSONL:
        raise CorpusError(f"{path}: is a folder, and the reader jsonl reads a file; give the file in it")
    expected = "a JSONL file or a folder with .txt or .md files"
    if reader is CorpusReader.MARKDOWN_SECTIONS and path.is_dir():
        expected = "a folder with Markdown pages (.md)"
    expected += (
        f"; PDF, HTML and Office files need {INSTALL}" if not can_convert() else ", PDF, HTML or Office files"
    )
    skipped = {} if skipped is None else skipped
    empty = True
    try:
        if path.is_dir() and reader is CorpusReader.MARKDOWN_SECTIONS:
            found = _read_sections(path, skipped)
        elif path.is_dir():
            found = _read_text_files(path, skipped)
        elif is_passage_file(path):
            found = read_passages(path)
        else:
            path.stat()
            found = _read_records(path, lenient=lenient)
        for located in found:
            empty = False
            yield located
    except OSError as error:
        fault = error.strerror or error
        raise CorpusError(f"{path}: cannot be read as a corpus: {fault}; give {expected}") from error
    if empty:
        left = f" ({listed(skipped)})" if skipped else ""
        raise CorpusError(f"{path}: holds no documents{left}; expected {expected}")


def _read_records(path: Path, *, lenient: bool) -> Located:
    """JSON lines, or the rows of a Parquet file."""
    if path.suffix == ".parquet":
        for number, record in enumerate(_parquet_rows(path)):
            place = f"{path}, row {number + 1}"
            yield place, _document_of(record, place, number if lenient else None)
        return
    for number, line in enumerate(read_lines(path)):
        if line.strip():
            place = f"{path}, line {number + 1}"
            yield place, _document_of(_parsed(line.rstrip("\r\n"), place), place, number if lenient else None)


def _parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """1,024 rows in memory at a time."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    # An arrow.ArrowInvalid is a ValueError.
    except (arrow.ArrowException, ValueError, OSError) as error:
        raise CorpusError(f"{path}: not a readable Parquet corpus: {error}") from None


def _parsed(line: str, place: str) -> object:
    try:
        return load_strict(line)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at").removesuffix(" starting")
        raise CorpusError(
            f"{place}: damaged at character {error.pos + 1}: {fault}; mend the line or take it out"
        ) from None
    except ValueError as error:
        raise CorpusError(f"{place}: damaged: {error}; mend the line or take it out") from None


def _document_of(fields: object, place: str, number: int | None) -> Document:
    """The document of a record; `number` is its own where reading is lenient."""
    if not isinstance(fields, dict):
        raise CorpusError(f'{place}: expected an object with "id", "title" and "text", found {_kind(fields)}')
    lenient = number is not None
    if lenient:
        fields = {"id": str(number), **fields, "title": fields.get("title") or ""}
        if type(fields["id"]) is int:
            fields["id"] = str(fields["id"])
    if fields.get("contents") is not None and fields.get("text") is None:
        title, _, text = _text_field(fields, "contents", place, blank=lenient).partition("\n")
        title = title.strip()
        if lenient and not (len(title) > 1 and title[0] == title[-1] == '"'):
            title, text = "", fields["contents"]
        title = title.removeprefix('"').removesuffix('"')
        if not text.strip() and not lenient:
            raise CorpusError(f'{place}: "contents" needs the title on its first line and text after it')
        title = (lenient and fields["title"]) or title
    else:
        title = _text_field(fields, "title", place, blank=True)
        text = _text_field(fields, "text", place, blank=lenient)
    source = _text_field({**fields, "source": fields.get("source", "")}, "source", place, blank=True)
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


def _read_text_files(folder: Path, skipped: Skipped) -> Located:
    for name, path, page in _files_below(folder, CorpusReader.TEXT_FILES, skipped):
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


def _read_sections(folder: Path, skipped: Skipped) -> Located:
    for name, path, page in _files_below(folder, CorpusReader.MARKDOWN_SECTIONS, skipped):
        for line, document in split_page(page.text, name=name, place=str(path), title=page.title):
            yield f"{path}, line {line}", document


def _files_below(
    folder: Path, reader: CorpusReader, skipped: Skipped
) -> Iterator[tuple[str, Path, Converted]]:
    """Name below the folder, path and content of every file that a reader reads, sorted by path."""
    found = survey(folder, reader)
    skipped.update(found.skipped)
    for path in found.read:
        name = path.relative_to(folder).as_posix()
        if encodable(name) != name:
            raise CorpusError(f"{path!r}: the file's name is not UTF-8; rename it")
        if path.suffix.lower() in CONVERTED_SUFFIXES:
            try:
                yield name, path, to_markdown(path)
            except NotConverted as fault:
                skipped[path] = str(fault)
            continue
        try:
            yield name, path, Converted("", path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}: not UTF-8 at byte {error.start + 1}; convert the file to UTF-8"
            ) from None


def _kind(value: object) -> str:
    number, null = "a number", type(None)
    names = {null: "null", bool: "true or false", int: number, float: number, str: "text", list: "a list"}
    return names.get(type(value), "an object")


def is_passage_file(path: Path) -> bool:
    """Whether the name is that of a TSV."""
    return path.name.removesuffix(".gz").endswith(".tsv")


def read_passages(path: Path) -> Iterator[tuple[str, Document]]:
    """DPR's `psgs_w100.tsv`: id, text and title, tab-separated with CSV quoting and a header line; each with its place.

    Streams. Raises CorpusError, with file and line, for what is not such a line.
    """
    rows = csv.reader(read_lines(path), delimiter="\t", strict=True)
    try:
        for row in rows:
            if len(row) != 3:
                raise CorpusError(
                    f"{path}, line {rows.line_num}: {len(row)} columns, expected id, text, title"
                )
            if row != ["id", "text", "title"]:
                yield f"{path}, line {rows.line_num}", Document(id=row[0], title=row[2], text=row[1])
    except csv.Error as error:
        raise CorpusError(f"{path}, line {rows.line_num}: {error}") from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzip or not, newline included. Raises CorpusError with the line number."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise CorpusError(f"{path}, line {number}: a line of more than {LONGEST_LINE:,} bytes")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}: not UTF-8 at byte {error.start + 1}; convert the file to UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}, line {number + 1}: cannot be read: {error}") from None


def read_run_corpus(
    settings: CorpusConfig,
    reader: CorpusReader | None,
    seed: int,
    *,
    size: Callable[[], int],
    count: CountTokens,
    spare: Callable[[Document], int] = lambda document: 0,
    progress: Progress,
) -> list[Document]:
    """The documents of a run; those for held-out tasks are marked. `count` counts tokens, at most `size` of which a
    piece has, less what is to `spare` for the document; all are asked for where documents are read.

    `reader` is the domain's. Raises CorpusError.
    """
    if settings.path == "none":
        return []
    if settings.path == "embedded":
        return embedded_documents(seed, settings)

    def cut(path: Path, sample: int | None = None) -> list[Document]:
        skipped: Skipped = {}
        if sample is None:
            documents = read_documents(path, reader, skipped)
        else:
            documents = read_sample(path, reader, sample, seed=seed)
        if skipped:
            # Files that turned out to give none.
            progress.say(f"{path}: {listed(skipped)}")
        # The tokenizer last: it takes seconds to load, and a broken file is told of at once.
        chunker = Chunker(size(), count)
        return _cut(documents, lambda document: chunker.cut(document, spare=spare(document)), progress)

    documents = cut(Path(settings.path), settings.sample)
    if settings.held_out_path is None:
        return documents
    held_out = cut(Path(settings.held_out_path))
    both = {document.id for document in documents} & {document.id for document in held_out}
    if both:
        raise CorpusError(f"{settings.held_out_path}: the id {min(both)!r} is also in {settings.path}")
    return documents + [document.model_copy(update={"source": HELD_OUT}) for document in held_out]


def _cut(
    documents: Sequence[Document], cut: Callable[[Document], list[Document]], progress: Progress
) -> list[Document]:
    characters = sum(len(document.text) for document in documents)
    if characters < WORTH_A_LINE:
        return [piece for document in documents for piece in cut(document)]
    progress.begin(f"cut {len(documents):,} documents, in kB", characters // 1000)
    pieces, done = [], 0
    for document in documents:
        pieces += cut(document)
        done += len(document.text)
        progress.advance(done // 1000, f"{len(pieces):,} pieces")
    progress.end(f"{len(pieces):,} pieces")
    return pieces


def documents_for(documents: Sequence[Document], *, held_out: bool) -> list[Document]:
    """The documents that tasks are written about: those for held-out tasks, or the others; all if there are none."""
    marked = [document for document in documents if (document.source == HELD_OUT) == held_out]
    return marked or list(documents)


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
    reasons = {path: fault or _reason_to_skip(path, own) for path, fault in sorted(_below(folder))}
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


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
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
