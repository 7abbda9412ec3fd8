"""Long documents, cut to a number of tokens. Cuts are made in the text, so that no character is broken.

A tokenizer reads a megabyte or so a second, and a text is mostly words that came before. So words are counted, each
with the whitespace in front of it and only once, and each document once: what lies between two places of it is the
difference of two sums. That is what a tokenizer gives, or a little more where it would join what stands at a seam. The
first pieces and documents are encoded as a whole too: a tokenizer that gives one of them more tokens than the sum of
its words has every one checked.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

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
        text, lines = counted.text, counted.text.split("\n")
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        # What is begun is `before`, of as many tokens, and the text from a place on.
        pieces, before, held, begun, place = list[str](), "", 0, 0, 0
        for block in (*found, AtomicBlock(len(lines), len(lines), "", "")):
            for start, stop, is_prose in (
                (starts[place], starts[block.start], True),
                (starts[block.start], starts[block.end], False),
            ):
                if held + self._tokens(counted, begun, stop) <= room:
                    continue
                pieces.append(before + text[begun:start])
                before, held, begun = "", 0, start
                if self._tokens(counted, start, stop) > room:
                    parts = (
                        self._split(counted, start, stop, title, room)
                        if is_prose
                        else self._parts(counted, lines, starts, block, title, room)
                    )
                    if not parts and text[start:stop].strip():
                        return []
                    *whole, before = parts or [""]
                    pieces += whole
                    before, begun = f"{before}\n", stop
                    held = sum(self._counts(_WORD.findall(before)))
            place = block.end
        return [piece.strip("\n").rstrip() for piece in (*pieces, before + text[begun:]) if piece.strip()]

    def _parts(
        self,
        counted: _Counted,
        lines: Sequence[str],
        starts: Sequence[int],
        block: AtomicBlock,
        title: str,
        room: int,
    ) -> list[str]:
        """Code or a table that does not fit, by lines; every part with its head and foot."""
        end, foot = block.end, f"\n{block.foot}" if block.foot else ""
        if foot and lines[end - 1].strip().startswith(block.foot.strip()):
            end -= 1
        room -= sum(self._counts(_WORD.findall(f"{block.head}\n") + _WORD.findall(foot)))
        begin = starts[block.start + block.head.count("\n") + 1]
        parts = self._split(counted, begin, starts[end] - 1, title, room, by_line=True)
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
