"""A mistake in a prompt pack: where it is, what was found, what to do."""

from collections.abc import Sequence
from typing import NamedTuple


class PackProblem(NamedTuple):
    """`str(problem)` is one line for a person; `line` counts from 1."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.message}"


def listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "nothing"
