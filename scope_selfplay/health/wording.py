"""What texts have in common once the names, numbers and rare words in them are taken out. Pure.

"Gives the region of Corgate Harbour, Ostmark." and "Gives the region of Norvale Mill, Wend." follow one pattern,
"gives the region of …". Which words stay is counted in the texts themselves, so no list of words and no language is
built in.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SLOT = "…"
RARE = 0.05
"""A word that fewer of the texts have is taken out: a value, or what a single text is about."""
NAME = 0.5
"""So is one that is written as a name, unless this many of the texts have it: then it is no choice of the text's."""
LEAST_WORDS = 3
"""Fewer words say nothing about a pattern."""
LEAST_KEPT = 0.75
"""Of the words that are neither names nor numbers; where fewer stay, only small words are left of the text."""

# Scripts that write no blanks between words count by character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+(?:['’-][^\W_]+)*")
_SENTENCE = re.compile(r"[.!?]+(?=\s|$)|[。！？\n]+")


class _Word(NamedTuple):
    text: str
    """In small letters."""
    is_capital: bool
    """A number counts as one."""
    is_first: bool
    """Of its sentence, where a capital letter says nothing."""


def patterns_of(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """The pattern of every text; "" where it has none. A group is what belongs to one task: its words count once."""
    split = [[_words(text) for text in texts] for texts in groups]
    counts = Counter(word for texts in split for word in {each.text for words in texts for each in words})
    names = _names(word for texts in split for words in texts for word in words)
    kept = {
        word
        for word, count in counts.items()
        if count >= max(2, (NAME if word in names else RARE) * len(groups))
    }
    return [[_pattern([word.text for word in words], kept, names) for words in texts] for texts in split]


def sentences(text: str) -> list[str]:
    """Its sentences of at least `LEAST_WORDS` words, comparable: without case, marks and blanks."""
    found = [" ".join(word.text for word in _words(part)) for part in _SENTENCE.split(text)]
    return [sentence for sentence in found if sentence.count(" ") + 1 >= LEAST_WORDS]


def repeated_sentence(text: str) -> str:
    """The first sentence that a text says twice; "" where there is none."""
    return next((sentence for sentence, count in Counter(sentences(text)).items() if count > 1), "")


def word_count(text: str) -> int:
    return sum(1 for _ in _WORD.finditer(text))


def _words(text: str) -> list[_Word]:
    return [
        _Word(word.lower(), word[:1].isupper() or any(letter.isdigit() for letter in word), place == 0)
        for part in _SENTENCE.split(text)
        for place, word in enumerate(_WORD.findall(part))
    ]


def _names(words: Iterable[_Word]) -> set[str]:
    """Words that are only ever written with a capital letter, at least once inside a sentence; and numbers."""
    small: set[str] = set()
    capital: set[str] = set()
    for word in words:
        if not word.is_capital:
            small.add(word.text)
        elif not word.is_first or not word.text.isalpha():
            capital.add(word.text)
    return capital - small


def _pattern(words: Sequence[str], kept: set[str], names: set[str]) -> str:
    plain = [word in kept for word in words if word not in names]
    if sum(word in kept for word in words) < LEAST_WORDS or sum(plain) < LEAST_KEPT * len(plain):
        return ""
    shown = [word if word in kept else SLOT for word in words]
    return " ".join(
        word for place, word in enumerate(shown) if word != SLOT or shown[place - 1 : place] != [SLOT]
    )
