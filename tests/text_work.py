"""Counts what a function does with text, so that a test of its growth needs no clock."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def characters_visited(function: Callable[..., object], *arguments: object) -> int:
    """How many characters the function's string methods look at, at most; every call counts as one more.

    A scanner that starts again at every tag calls a method of the whole text for each of them: eight times the text
    is sixty-four times the work.
    """
    visited = 0

    def count(frame: FrameType, event: str, called: Any) -> None:
        nonlocal visited
        visited += 1
        if event == "c_call" and isinstance(owner := getattr(called, "__self__", None), str | bytes):
            visited += len(owner)

    # What is collected meanwhile may run code of its own, which would be counted.
    collects = gc.isenabled()
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return visited


def assert_linear(function: Callable[[str], object], piece: str, *, wrapper: str = "{}") -> None:
    """Eight times the text may take eight times the work, and what is done once."""
    small, large = (
        characters_visited(function, wrapper.replace("{}", piece * (size // len(piece) + 1)))
        for size in (1 << 14, 1 << 17)
    )
    assert large <= 9 * small + 1000, f"{piece[:40]!r}: {small} characters, then {large}"
