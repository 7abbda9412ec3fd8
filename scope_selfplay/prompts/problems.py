"""A mistake in a prompt pack: where it is, what was found, what to do."""

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class PackProblem(NamedTuple):
    """`str(problem)` is one line for a person; `line` counts from 1."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.message}"


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` most probably meant, or None when none is close."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing."""
    guess = nearest(word, known)
    return f" (did you mean {guess}?)" if guess else ""


def listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "nothing"
