"""A path to documents. What the user gives is untrusted: every fault is one line with file and place.

A file is read by its suffix (`formats`), one that no format knows as JSON lines; a `.tsv` that is given itself is that
of DPR. How a folder's pages are read follows from its domain (`corpus_reader` in domain.yaml), else by `text_files`. A
file of a folder that cannot be read is left out with its reason, or stops all where reading is strict. Every document
comes with its place, in an order that follows from the names alone. Runs and the index builder read alike.
"""

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from scope_selfplay.base.errors import CorpusError, did_you_mean
from scope_selfplay.base.machine import in_processes
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.text import encodable, trimmed
from scope_selfplay.base.values import CorpusReader, Document
from scope_selfplay.config.run import CorpusConfig, RunConfig
from scope_selfplay.corpus.cut import Chunker, CountTokens, metadata_of, split_page, unused
from scope_selfplay.corpus.formats import FORMATS, INSTALL, Converted, NotConverted, format_of
from scope_selfplay.corpus.screen import LeftOut, first_shuffled, kin_of, screen
from scope_selfplay.corpus.world import HELD_OUT, embedded_documents
from scope_selfplay.net.json import read_lines

_SHOWN = 3
LARGEST_WHOLE = 1 << 30
"""Bytes of the largest file whose documents a run holds all at once: three to four times as much in memory."""
WORTH_A_LINE = 5_000_000
"""Characters of a corpus that take more than a moment to cut."""
_JSON_LINES = next(row for row in FORMATS if ".jsonl" in row.suffixes)
Skipped = dict[Path, str]
"""Gets each file that is not read, with the reason."""
Located = Iterator[tuple[str, Document]]
"""Documents with their file and line."""


def read_documents(
    path: Path, reader: CorpusReader | None = None, skipped: Skipped | None = None, **how: Any
) -> list[Document]:
    """The documents of a file or of a folder, in file order; `how` as in `located_documents`.

    - `jsonl`: a line is `{"id", "title", "text"}`, or `{"id", "contents"}` with the title as the first line of
      the contents (the wiki-18 form); other fields are ignored, blank lines skipped. Rows of Parquet are read alike.
    - a `.tsv` or `.tsv.gz` has id, text and title, as DPR's Wikipedia has them.
    - `text_files`: each page below a folder; its id is its path below the folder, its title that of its front matter,
      else a heading that it begins with, else its own or its name. Hidden files are skipped.
    - `markdown_sections`: each section of each page below a folder, see `cut.split_page`.
    - Both read whatever becomes Markdown or records (`formats.FORMATS`), a document for each record.

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
    for place, document in located_documents(path, reader, skipped, **how):
        if document.id in places:
            raise CorpusError(
                f"{place}: the id {document.id!r} is already used at {places[document.id]}; ids must be unique"
            )
        places[document.id] = place
        documents.append(document)
    return documents


def read_sample(
    path: Path, reader: CorpusReader | None, count: int, *, seed: int, **how: Any
) -> list[Document]:
    """The first `count` of the documents shuffled by the seed. All lines are checked, only these documents are held."""
    located = located_documents(path, reader, **how)
    return first_shuffled((document for _, document in located), count, seed=seed)


def located_documents(
    path: Path,
    reader: CorpusReader | None = None,
    skipped: Skipped | None = None,
    *,
    lenient: bool = False,
    fields: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Located:
    """Every document with its file and line, one at a time.

    Raises as `read_documents`, but for ids that occur twice. `lenient` takes lines without an id for their number, ids
    that are numbers, and what has no title or no text, as published corpora have them. `fields` maps our names (id,
    title, text, url, ...) to those of the records. `strict` raises for a file of a folder that gives no document.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CorpusError(f"{path}: holds no documents: a pipe or a device; write the documents to a file")
    if path.is_dir() and reader is CorpusReader.JSONL:
        raise CorpusError(f"{path}: is a folder, and the reader jsonl reads a file; give the file in it")
    pages = "Markdown pages (.md)" if reader is CorpusReader.MARKDOWN_SECTIONS else ".txt or .md files"
    extras = {INSTALL.format(row.extra): None for row in FORMATS if not row.is_there}
    expected = f"a JSONL file or a folder with {pages}; others need {' and '.join(extras) or 'no more'}"
    skipped = {} if skipped is None else skipped
    empty = True
    try:
        if path.is_dir():
            found = _of_folder(path, reader, skipped, fields=fields or {}, strict=strict)
        elif is_passage_file(path):
            found = read_passages(path)
        else:
            path.stat()
            found = _of_file(path, path.name, reader, fields or {}, lenient=lenient)
        for located in found:
            empty = False
            yield located
    except NotConverted as fault:
        raise CorpusError(f"{path}: {fault}") from None
    except OSError as error:
        reason = error.strerror or error
        raise CorpusError(f"{path}: cannot be read as a corpus: {reason}; give {expected}") from error
    if empty:
        left = f" ({listed(skipped)})" if skipped else ""
        raise CorpusError(f"{path}: holds no documents{left}; expected {expected}")


def _of_folder(
    folder: Path, reader: CorpusReader | None, skipped: Skipped, *, fields: Mapping[str, str], strict: bool
) -> Located:
    found = survey(folder, reader)
    skipped.update(found.skipped)
    if strict and found.skipped:
        raise CorpusError(f"{folder}: {listed(found.skipped)}; take them out, or read without strict")
    read = partial(_read_file, folder, reader=reader, fields=fields)
    for path, (located, reason) in zip(found.read, in_processes(read, found.read), strict=True):
        if reason and strict:
            raise CorpusError(f"{path}: {reason}")
        if reason:
            skipped[path] = reason
        for place, values in located:
            # They were checked where they were read.
            yield place, Document.model_construct(**values)


def _read_file(
    folder: Path, path: Path, *, reader: CorpusReader | None, fields: Mapping[str, str]
) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """The documents of one file as a whole, or why it gives none; as plain values, which travel fast."""
    name = path.relative_to(folder).as_posix()
    try:
        found = list(_of_file(path, name, reader, fields, lenient=True, in_folder=True))
    except (NotConverted, CorpusError, OSError) as fault:
        return [], str(fault).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
    return [(place, dict(document)) for place, document in found], "" if found else "holds no text"


def _of_file(
    path: Path,
    name: str,
    reader: CorpusReader | None,
    fields: Mapping[str, str],
    *,
    lenient: bool,
    in_folder: bool = False,
) -> Located:
    """Raises NotConverted and CorpusError."""
    if encodable(name) != name:
        raise NotConverted("has a name that is not UTF-8")
    row = format_of(path) or _JSON_LINES
    if not row.is_there:
        raise NotConverted(f"needs {INSTALL.format(row.extra)}")
    found = row.read(path)
    if not isinstance(found, Converted):
        # Only of lines we know that they were written for this.
        numbered = lenient or row is not _JSON_LINES
        taken: dict[str, int] = {}
        for number, (place, record) in enumerate(found):
            document = _document_of(record, place, number if numbered else None, fields)
            if not in_folder:
                yield place, document
            elif document.text:
                own = {"id": f"{name}#{unused(document.id, taken)}", "source": document.source or name}
                yield place, document.model_copy(update=own)
        return
    about = metadata_of(found.metadata)
    if not found.text.strip():
        raise NotConverted("holds no text")
    if not row.is_markdown:
        title = PurePosixPath(name).stem.replace("_", " ").replace("-", " ")
        yield str(path), Document(id=name, title=title, text=trimmed(found.text), metadata=about)
        return
    deepest = 2 if reader is CorpusReader.MARKDOWN_SECTIONS else 0
    for line, document in split_page(
        found.text, name=name, place=str(path), title=found.title, about=about, deepest=deepest
    ):
        yield f"{path}, line {line}" if deepest else str(path), document


def _document_of(fields: object, place: str, number: int | None, names: Mapping[str, str]) -> Document:
    """The document of a record; `number` is its own where reading is lenient."""
    if not isinstance(fields, dict):
        raise CorpusError(f'{place}: expected an object with "id", "title" and "text", found {_kind(fields)}')
    lenient = number is not None
    for ours, theirs in names.items():
        if theirs not in fields:
            found = ", ".join(map(repr, fields))[:200]
            raise CorpusError(f'{place}: corpus.fields.{ours} is "{theirs}", found {found}')
        fields = {**fields, ours: fields[theirs]}
    if lenient:
        if "text" not in fields and fields.get("contents") is None:
            _text_field(fields, "text", place)
        given = {name: fields.get(name) for name in ("id", "title", "source")}
        texts = {name: str(each) for name, each in given.items() if type(each) in (str, int, float)}
        fields = {**fields, "title": "", "source": "", **texts}
        if fields.get("id") is None or not str(fields["id"]).strip():
            fields["id"] = str(number)
        if fields.get("contents") is None and fields["text"] is None:
            fields["text"] = ""
    if fields.get("contents") is not None and fields.get("text") is None:
        title, _, text = _text_field(fields, "contents", place, blank=lenient).partition("\n")
        title = title.strip()
        if lenient and not (len(title) > 1 and title[0] == title[-1] == '"'):
            title, text = "", encodable(str(fields["contents"]))
        title = title.removeprefix('"').removesuffix('"')
        if not text.strip() and not lenient:
            raise CorpusError(f'{place}: "contents" needs the title on its first line and text after it')
        title = (lenient and str(fields["title"])) or title
    else:
        title = _text_field(fields, "title", place, blank=True)
        text = _text_field(fields, "text", place, blank=lenient)
    source = _text_field({**fields, "source": fields.get("source", "")}, "source", place, blank=True)
    about = fields.get("metadata")
    return Document(
        id=_text_field(fields, "id", place),
        title=title.strip(),
        text=trimmed(text),
        source=source,
        metadata=metadata_of({**about, **fields} if isinstance(about, dict) else fields),
    )


def _text_field(fields: Mapping[str, object], name: str, place: str, *, blank: bool = False) -> str:
    if name not in fields:
        hint = did_you_mean(name, fields, '; did you mean to rename "{}"?')
        found = ", ".join(map(repr, fields))[:200] or "none"
        advice = hint or "; name it in corpus.fields"
        raise CorpusError(f'{place}: the field "{name}" is missing, found {found}{advice}')
    value = fields[name]
    if not isinstance(value, str):
        raise CorpusError(f'{place}: "{name}" must be text, found {_kind(value)}')
    if not blank and not value.strip():
        raise CorpusError(f'{place}: "{name}" must not be blank')
    return encodable(value)


def _kind(value: object) -> str:
    number, null = "a number", type(None)
    names = {null: "null", bool: "true or false", int: number, float: number, str: "text", list: "a list"}
    return names.get(type(value), "an object")


def is_passage_file(path: Path) -> bool:
    """Whether the name is that of a TSV."""
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def read_passages(path: Path) -> Iterator[tuple[str, Document]]:
    """DPR's `psgs_w100.tsv`: id, text and title, tab-separated with CSV quoting and a header line, by whose
    names the columns are read; each with its place.

    Streams. Raises CorpusError, with file and line, for what is not such a line.
    """
    rows, names = csv.reader(read_lines(path), delimiter="\t", strict=True), ["id", "text", "title"]
    try:
        for row in rows:
            if len(row) != 3:
                raise CorpusError(
                    f"{path}, line {rows.line_num}: {len(row)} columns, expected id, text, title"
                )
            if sorted(row) == sorted(names):
                names = row
                continue
            own = dict(zip(names, row, strict=True))
            yield (
                f"{path}, line {rows.line_num}",
                Document(id=own["id"], title=own["title"], text=own["text"]),
            )
    except csv.Error as error:
        raise CorpusError(f"{path}, line {rows.line_num}: {error}") from None


def read_run_corpus(
    settings: CorpusConfig,
    reader: CorpusReader | None,
    seed: int,
    *,
    size: Callable[[], int],
    count: CountTokens,
    spare: Callable[[Document], int] = lambda document: 0,
    progress: Progress,
    skipped: Skipped | None = None,
    left_out: list[LeftOut] | None = None,
) -> list[Document]:
    """The documents of a run; those for held-out tasks are marked. `count` counts tokens, at most `size` of which a
    piece has, less what is to `spare` for the document; all are asked for where documents are read.

    `reader` is the domain's; `skipped` and `left_out` get what is not among them. Raises CorpusError.
    """
    skipped, left_out = {} if skipped is None else skipped, [] if left_out is None else left_out
    if settings.path == "none":
        return []
    if settings.path == "embedded":
        return embedded_documents(seed, settings)

    def cut(path: Path, sample: int | None = None) -> list[Document]:
        files: Skipped = {}
        how: dict[str, Any] = {"skipped": files, "fields": settings.fields, "strict": settings.strict}
        if sample is None:
            documents = read_documents(path, reader, **how)
        else:
            documents = read_sample(path, reader, sample, seed=seed, **how)
        if files:
            # Files that turned out to give none.
            progress.say(f"{path}: {listed(files)}")
            skipped.update(files)
        screened = screen(documents, settings)
        if screened.left_out:
            progress.say(f"{path}: {screened}")
            left_out.extend(screened.left_out)
        documents = screened.kept
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
    if settings.hold_out == "page":
        kin = set(kin_of({each.id for each in held_out}, [*documents, *held_out]))
        progress.say(f"left out: {len(kin):,} documents of held-out pages, or nearly the same")
        reason = "of held-out pages, or nearly the same"
        left_out.extend(LeftOut(reason, document) for document in documents if document.id in kin)
        documents = [document for document in documents if document.id not in kin]
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


def reserves_pages(config: RunConfig, documents: Sequence[Document]) -> bool:
    """Whether held-out tasks are written from documents that other stages could take: whole pages then."""
    has_own = any(document.source == HELD_OUT for document in documents)
    return config.corpus.hold_out == "page" and config.held_out is None and not has_own


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
    common = os.path.commonpath([path.parent for path in skipped])
    for path, reason in skipped.items():
        reasons.setdefault(reason, []).append(path.relative_to(common).as_posix())
    parts = [
        f"{len(names):,} {reason} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for reason, names in reasons.items()
    ]
    return f"{len(skipped):,} skipped: {'; '.join(parts)}"


def survey(folder: Path, reader: CorpusReader | None) -> FolderSurvey:
    """All files below a folder but hidden ones, as a reader takes them."""
    reasons = {
        path: fault or _reason_to_skip(path, reader)
        for path, fault in sorted(_below(folder), key=lambda each: each[0].parts)
    }
    return FolderSurvey(
        [path for path, reason in reasons.items() if not reason],
        {path: reason for path, reason in reasons.items() if reason},
    )


def _reason_to_skip(path: Path, reader: CorpusReader | None) -> str:
    row = format_of(path)
    if row is None:
        return f"have a suffix that no reader knows ({path.suffix.lower() or 'none'})"
    if "_sources" in path.parts and path.name.endswith((".rst.txt", ".md.txt")):
        return "are what Sphinx made its pages of"
    if reader is CorpusReader.MARKDOWN_SECTIONS and not row.is_markdown:
        return "are no Markdown, which the reader markdown_sections reads"
    return "" if row.is_there else f"need {INSTALL.format(row.extra)}"


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file with the reason why it cannot be read, if there is one; and folders that cannot be entered."""
    closed: list[Path] = []
    inside = folder.resolve()
    for place, folders, files in os.walk(
        folder, onerror=lambda error: closed.append(Path(str(error.filename)))
    ):
        # An index of ours holds texts of the folder around it.
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _is_index(Path(place, name))
        ]
        linked = [name for name in folders if Path(place, name).is_symlink()]
        for name in (*files, *linked):
            if not name.startswith("."):
                yield Path(place, name), _closed(Path(place, name), inside)
    for path in closed:
        if path == folder:
            raise PermissionError(13, os.strerror(13), str(folder))
        yield path, "are folders that this user may not enter"


def _closed(path: Path, inside: Path) -> str:
    """Why a file is not read; a link in somebody else's folder may lead to this user's keys."""
    try:
        if path.is_symlink() and not path.resolve(strict=True).is_relative_to(inside):
            return "are links that lead out of the folder"
    except (OSError, RuntimeError):
        return "are links that lead nowhere"
    if not path.is_file():
        return "are links to folders" if path.is_dir() else "are no files"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"


def _is_index(folder: Path) -> bool:
    """Whether it is one of ours; others have files of this name, too."""
    manifest = folder / "manifest.json"
    with suppress(OSError):
        if manifest.is_file():
            with manifest.open("rb") as file:
                return b'"corpus_hash"' in file.read(4096)
    return False
