"""A corpus as it was published: its documents, the chunks of long ones, and a hash of what its files hold.

Read are DPR's TSV, wiki-18 or plain JSONL, Parquet, and a folder of files. Every reader streams, keeps the source's
order, and names file and line when something is wrong. Texts are untrusted: nothing in them becomes a path, and one
line may unpack to at most `LONGEST_LINE` bytes.
"""

import hashlib
import html.parser
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from retrieval.index_folder import file_sha256
from retrieval.passages import split_contents
from scope_selfplay.errors import CheckpointError, CorpusError
from scope_selfplay.passage_files import LONGEST_LINE, read_lines, read_passages
from scope_selfplay.schemas import Document
from scope_selfplay.wire.strict_json import parse_object

TEXT_SUFFIXES = frozenset({".txt", ".md", ".markdown", ".html", ".htm"})
HIDDEN_TAGS = ("script", "style", "noscript", "template")
WORD = re.compile(r"\S+")
SENTENCE_ENDS = (".", "!", "?", '."', ".)", "。")
Parsed = TypeVar("Parsed")
Spans = Callable[[str], list[tuple[int, int]]]
"""Start and end character of every token of a text, in order."""


def read_documents(source: Path) -> Iterator[Document]:
    """The documents of `source`, by its name: `.tsv[.gz]`, `.jsonl[.gz]`, `.parquet`, or a folder of text files.

    Raises CorpusError for a missing or unknown source and at the first line that is not a document.
    """
    if source.is_dir():
        return read_folder(source)
    if not source.is_file():
        raise CorpusError(f"{source}: no such file or folder")
    name = source.name.removesuffix(".gz")
    match Path(name).suffix:
        case ".tsv":
            return read_dpr(source)
        case ".jsonl" | ".json":
            return read_jsonl(source)
        case ".parquet":
            return read_parquet(source)
        case suffix:
            raise CorpusError(
                f"{source}: cannot read {suffix or 'a file without suffix'}; expected .tsv, .jsonl, .parquet "
                "(the first two also as .gz) or a folder of .txt, .md and .html files"
            )


def read_dpr(path: Path) -> Iterator[Document]:
    """DPR's `psgs_w100.tsv`, as a run reads it."""
    return (document for _, document in read_passages(path))


def read_jsonl(path: Path) -> Iterator[Document]:
    """JSON lines with `id` and either `contents` (wiki-18: a quoted title line, then the text) or `text`, `title`."""
    return _from_lines(path, lambda record, number: _document(record, str(number - 1)))


def read_parquet(path: Path) -> Iterator[Document]:
    """Columns as in `read_jsonl`, 1,024 rows in memory at a time."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        row = 0
        for batch in file.iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                yield _document(record, str(row))
                row += 1
    except ValueError as error:  # arrow.ArrowInvalid is one
        raise CorpusError(f"{path}: not a readable Parquet corpus: {error}") from None
    except (arrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: cannot be read: {error}") from None


def read_folder(folder: Path) -> Iterator[Document]:
    """Text, Markdown and HTML files below `folder`, by relative path, which is also the id.

    The title is the HTML title, the first Markdown heading, or the file's name. Links that lead out are refused.
    """
    root = folder.resolve()
    paths = text_files(folder)
    if not paths:
        raise CorpusError(f"{folder}: no {', '.join(sorted(TEXT_SUFFIXES))} files in it")
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise CorpusError(f"{path}: links out of {folder}")
        if path.stat().st_size > LONGEST_LINE:
            raise CorpusError(f"{path}: more than {LONGEST_LINE:,} bytes")
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{path}: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
        yield _file_document(path.relative_to(folder), text)


def read_questions(path: Path) -> list[str]:
    """The `question` of every JSON line, for the recall gate. Raises CorpusError, naming the line."""

    def question_of(record: dict[str, Any], number: int) -> str:
        question = record.get("question")
        if not isinstance(question, str) or not question.strip():
            raise ValueError("expected a `question` with some text")
        return question

    questions = list(_from_lines(path, question_of))
    if not questions:
        raise CorpusError(f"{path}: no question in it")
    return questions


def _from_lines(path: Path, parse: Callable[[dict[str, Any], int], Parsed]) -> Iterator[Parsed]:
    """What `parse` makes of every JSON line and its number. Raises CorpusError, naming the line."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield parse(parse_object(line), number)
            except ValueError as error:
                raise CorpusError(f"{path}:{number}: {error}") from None


def _document(record: dict[str, Any], default_id: str) -> Document:
    fields = {name: record.get(name) for name in ("contents", "text", "title")}
    for name, value in fields.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name!r} is a {type(value).__name__}, expected a string")
    identifier = record.get("id", default_id)
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ValueError(f"'id' is a {type(identifier).__name__}, expected a string or a whole number")
    if fields["contents"] is not None:
        contents = split_contents(fields["contents"])
        return Document(id=str(identifier), title=fields["title"] or contents.title, text=contents.text)
    if fields["text"] is None:
        raise ValueError("neither 'contents' nor 'text' in it")
    return Document(id=str(identifier), title=fields["title"] or "", text=fields["text"])


def _file_document(path: Path, text: str) -> Document:
    title = path.stem
    match path.suffix.lower():
        case ".html" | ".htm":
            page = _Page()
            page.feed(text)
            page.close()
            title = " ".join("".join(page.title).split()) or title
            text = "\n".join(line for part in page.text if (line := " ".join(part.split())))
        case ".md" | ".markdown":
            heading = next((line for line in text.splitlines() if line.startswith("# ")), "")
            title = heading[2:].strip() or title
    return Document(id=path.as_posix(), title=title, text=text.strip(), source=path.as_posix())


class _Page(html.parser.HTMLParser):
    """Collects a page's title and its visible text, one entry per run of text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.text: list[str] = []
        self._hidden = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in HIDDEN_TAGS
        self._in_title = tag == "title"

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN_TAGS:
            self._hidden = max(0, self._hidden - 1)
        self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.text.append(data)


def text_files(folder: Path) -> list[Path]:
    """The text files below `folder`, in order. No file of an index that is built inside it is one."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in TEXT_SUFFIXES and path.is_file()
    )


def source_bytes(source: Path) -> int:
    """Size of what is read of a corpus; 0 for one that does not exist."""
    if source.is_dir():
        return sum(path.stat().st_size for path in text_files(source))
    return source.stat().st_size if source.exists() else 0


def source_hash(source: Path) -> str:
    """sha256 of a corpus: of a file's bytes, or of the paths and bytes of a folder's text files.

    Times and locations do not count, so that copies of one source on two machines are the same source. Raises
    CorpusError for what cannot be read.
    """
    if source.is_dir():
        return hash_of_files(source, text_files(source))
    return _file_hash(source)


def hash_of_files(root: Path, paths: Iterable[Path]) -> str:
    """sha256 over paths below `root` and what the files hold. Raises CorpusError for what cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        # A hash has one length: no path can be taken for the end of another file.
        digest.update(
            f"{_file_hash(path)} {path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None


def word_spans(text: str) -> list[tuple[int, int]]:
    """Words as tokens: the default where no tokenizer is given (DPR's passages are 100 words each)."""
    return [match.span() for match in WORD.finditer(text)]


def token_spans(tokenizer_file: Path) -> Spans:
    """Tokens of a Hugging Face `tokenizer.json`, without special ones. Raises CheckpointError where it is none."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise CheckpointError(f"{tokenizer_file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spans(text: str) -> list[tuple[int, int]]:
        offsets: list[tuple[int, int]] = tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    return spans


def chunk_documents(
    documents: Iterable[Document], *, size: int = 100, overlap: int = 0, spans: Spans = word_spans
) -> Iterator[Document]:
    """Cut each document's text into windows of at most `size` tokens, `overlap` of them shared with the one before.

    A window ends after a sentence when one ends in its last quarter. A document of one window keeps its id;
    the others are numbered `id#0`, `id#1`, ... A text without tokens gives no chunk.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must be at least 0 and less than size {size}")
    for document in documents:
        tokens = spans(document.text)
        cuts = list(_windows(document.text, tokens, size, overlap))
        for number, (start, end) in enumerate(cuts):
            text = document.text[tokens[start][0] : tokens[end - 1][1]]
            name = document.id if len(cuts) == 1 else f"{document.id}#{number}"
            yield Document(id=name, title=document.title, text=text, source=document.source or document.id)


def _windows(text: str, tokens: list[tuple[int, int]], size: int, overlap: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(tokens):
        end = min(start + size, len(tokens))
        if end < len(tokens):
            # Never so short that the next window would start where this one did.
            earliest = max(start + overlap + 1, end - size // 4)
            end = next(
                (cut for cut in range(end, earliest - 1, -1) if _ends_sentence(text, tokens, cut)), end
            )
        yield start, end
        if end == len(tokens):
            return
        start = end - overlap


def _ends_sentence(text: str, tokens: list[tuple[int, int]], cut: int) -> bool:
    first, last = tokens[cut - 1][1], tokens[cut][0]
    return "\n" in text[first:last] or text[max(0, first - 2) : first].endswith(SENTENCE_ENDS)
