"""Chunks of long documents: windows of tokens that end with a sentence where they can, titles kept."""

import re
from collections.abc import Callable, Iterable, Iterator

from scope_selfplay.schemas import Document

Spans = Callable[[str], list[tuple[int, int]]]
"""Start and end character of every token of a text, in order."""

WORD = re.compile(r"\S+")
SENTENCE_ENDS = (".", "!", "?", '."', ".)", "。")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Words as tokens: the default where no tokenizer is given (DPR's passages are 100 words each)."""
    return [match.span() for match in WORD.finditer(text)]


def chunk_documents(
    documents: Iterable[Document], *, size: int = 100, overlap: int = 0, spans: Spans = word_spans
) -> Iterator[Document]:
    """Cut each document's text into windows of at most `size` tokens, `overlap` of them shared with the one
    before.

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
