"""Long documents, cut to a number of tokens. Cuts are made in the text, so that no character is broken.

A tokenizer reads a megabyte or two a second, and a text is mostly words that came before. So words are counted, each
with the whitespace in front of it and only once; the sum of a text's words is what it has, or a little more where a
tokenizer would join what stands at a seam. The first pieces and documents are encoded as a whole too: a tokenizer that
gives one of them more tokens than the sum of its words has every one checked.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document
from scope_selfplay.corpus.markdown import AtomicBlock, atomic_blocks

CountTokens = Callable[[Sequence[str]], list[int]]
"""Tokens of many texts, without special tokens."""
_WORD = re.compile(r"\s{0,32}\S{1,32}|\s{1,32}")
_BLOCK = 1 << 18
"""Characters of a text that are counted at once."""
_MOST_WORDS = 1 << 20
"""Words whose counts are remembered, in about 100 MB."""
_CHECKED = 64
"""Pieces that are encoded as a whole, to see that the sums hold."""


class Chunker:
    """Cuts documents to pieces of at most `max_tokens` tokens, title line included; each keeps the title."""

    def __init__(self, max_tokens: int, count: CountTokens) -> None:
        self._limit, self._most, self._count = max_tokens, max_tokens, count
        self._known: dict[str, int] = {}
        self._compared = 0
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
        if self._fits(title, document.text):
            return [document]
        (taken,) = self._count([title]) if title else (0,)
        text, room = document.text.strip(), self._most - taken
        pieces, found = list[str](), atomic_blocks(text)
        # With less room a fence would take most of a piece.
        while found and room >= 32 and not pieces:
            pieces = self._around(text, found, title, room)
            if not all(self._fits(title, piece) for piece in pieces):
                pieces, room = [], room * 7 // 8
        pieces = pieces or self._pieces(text, title, self._most - taken)
        if not pieces:
            raise CorpusError(
                f"document {document.id!r}: {self._most} tokens leave no room for text beside a title of {taken} "
                "tokens; raise the limit or shorten the title"
            )
        return [
            document.model_copy(update={"id": f"{document.id}#{number}", "text": piece})
            for number, piece in enumerate(pieces)
        ]

    def _pieces(self, text: str, title: str, room: int) -> list[str]:
        pieces: list[str] = []
        start = 0
        while start < len(text):
            block = text[start : start + _BLOCK]
            ends = self._cuts(block, title, room, is_last=start + _BLOCK >= len(text))
            if not ends:
                return []
            pieces += [block[begin:end].rstrip() for begin, end in ends]
            start += ends[-1][1]
            while start < len(text) and text[start].isspace():
                start += 1
        return pieces

    def _around(self, text: str, found: Sequence[AtomicBlock], title: str, room: int) -> list[str]:
        """Pieces of a text with code and tables, cut outside of them where that is possible."""
        lines, pieces, begun, place = text.split("\n"), list[str](), "", 0

        def add(more: str, parts: Callable[[], list[str]]) -> None:
            nonlocal begun
            joined = f"{begun}\n{more}" if begun else more
            if self._tokens(joined) > room:
                pieces.append(begun)
                joined = more
            if self._tokens(joined) > room:
                *whole, joined = parts() or [""]
                pieces.extend(whole)
            begun = joined

        for block in (*found, AtomicBlock(len(lines), len(lines), "", "")):
            prose = "\n".join(lines[place : block.start])
            if prose.strip():
                add(prose, partial(self._pieces, prose.strip(), title, room))
            if block.head:
                whole = "\n".join(lines[block.start : block.end])
                add(whole, partial(self._parts, lines[block.start : block.end], block, title, room))
            place = block.end
        return [piece.strip("\n").rstrip() for piece in (*pieces, begun) if piece.strip()]

    def _parts(self, lines: Sequence[str], block: AtomicBlock, title: str, room: int) -> list[str]:
        """Code or a table that does not fit, by lines; every part with its head and foot."""
        body = list(lines[block.head.count("\n") + 1 :])
        if block.foot and body and body[-1].strip().startswith(block.foot.strip()):
            body.pop()
        room -= self._tokens(f"{block.head}\n") + self._tokens(f"\n{block.foot}")
        parts, own, taken = list[str](), list[str](), 0
        for line in body:
            for piece in [line] if self._tokens(line) < room else self._pieces(line, title, room) or [line]:
                tokens = self._tokens(f"{piece}\n")
                if own and taken + tokens > room:
                    parts.append("\n".join(own))
                    own, taken = [], 0
                own.append(piece)
                taken += tokens
        parts.append("\n".join(own))
        foot = f"\n{block.foot}" if block.foot else ""
        return [f"{block.head}\n{part}{foot}" for part in parts]

    def _tokens(self, text: str) -> int:
        return sum(self._counts(_WORD.findall(text)))

    def _fits(self, title: str, text: str) -> bool:
        # Hardly a tokenizer has less than a token for 32 characters, or joins three words' tokens to one.
        if len(text) > 64 * self._most:
            return False
        tokens = sum(self._counts(_WORD.findall(title + text)))
        if tokens > 3 * self._most:
            return False
        if self._sums_hold and self._compared >= _CHECKED and tokens <= self._most:
            return True
        self._compared += 1
        (whole,) = self._count([title + text])
        if tokens <= self._most < whole:
            self._sums_hold = False
        return whole <= self._most

    def _cuts(self, block: str, title: str, room: int, *, is_last: bool) -> list[tuple[int, int]]:
        """Begin and end of each whole piece of a block, the first at its beginning; the rest is for the next block."""
        words = _WORD.findall(block)
        ends = list(accumulate(map(len, words)))
        sums = list(accumulate(self._counts(words)))
        cuts: list[tuple[int, int]] = []
        start = 0
        while start < len(block):
            first = bisect_right(ends, start)
            # A word without the whitespace in front of it may have more tokens than with it.
            before = sums[first] - self._counts([block[start : ends[first]]])[0]
            fitting = bisect_right(sums, before + room)
            if fitting == len(words) and not is_last and cuts:
                break
            length = ends[fitting - 1] - start if fitting > first else 0
            if fitting == first:
                # A word too long for a piece: as many characters, each counted alone, as make one; 0 where none fits.
                length = bisect_right(list(accumulate(self._counts(list(block[start : ends[first]])))), room)
            elif fitting < len(words):
                cut = _clean_cut(block[start : start + length + 1], length)
                length = cut if sums[bisect_right(ends, start + cut) - 1] > before else length
            length = self._checked_length(block[start : start + length], title)
            if length == 0:
                return cuts
            cuts.append((start, start + length))
            start += length
            while start < len(block) and block[start].isspace():
                start += 1
        return cuts

    def _checked_length(self, piece: str, title: str) -> int:
        """Of the first pieces, and of all where sums do not hold: what of the piece fits as a whole."""
        if self._sums_hold and self._checked >= _CHECKED:
            return len(piece)
        self._checked += 1
        length = len(piece)
        while length and self._count([title + piece[:length]])[0] > self._most:
            self._sums_hold = False
            length = _clean_cut(piece, length * 15 // 16)
        return length

    def _counts(self, words: list[str]) -> list[int]:
        known = self._known
        unseen = [word for word in dict.fromkeys(words) if word not in known]
        if len(known) + len(unseen) > _MOST_WORDS:
            known.clear()
            unseen = list(dict.fromkeys(words))
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
