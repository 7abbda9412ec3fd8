"""What a person sees while a long command works: a live line in a terminal, plain lines in a pipe. All on stderr."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

from scope_selfplay.untrusted_text import printable

_BARS = "▁▂▃▄▅▆▇█"
_TOO_EARLY = 5.0
"""Seconds in which a pace says nothing yet."""


class Progress:
    """Receives what is going on and returns nothing. The base shows nothing."""

    def begin(self, title: str, total: int | None) -> None: ...

    def advance(self, done: int, note: str = "") -> None: ...

    def plot(self, value: float) -> None:
        """One more point of the curve of what is going on, between 0 and 1."""

    def pulse(self, note: str) -> None:
        """What goes on while nothing advances."""

    def end(self, note: str = "") -> None: ...

    def say(self, text: str) -> None: ...


class Activity:
    """What the engines of a run do: `show` gets tokens per second and rollouts under way, from time to time."""

    def __init__(
        self,
        show: Callable[[str], None] = lambda note: None,
        *,
        every: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show, self._every, self._now = show, every, now
        self._since, self._tokens, self._running = now(), 0, 0

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """While one rollout is made."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def sampled(self, tokens: int) -> None:
        """So many tokens are there."""
        self._tokens += tokens
        seconds = self._now() - self._since
        if seconds >= self._every:
            rate = self._tokens / seconds
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            self._show(f"{speed} tokens/s, {self._running:,} rollouts under way")
            self._since, self._tokens = self._now(), 0


def bars(values: Sequence[float], most: int = 24) -> str:
    """One bar a value between 0 and 1; of a longer curve the last ones."""
    kept = [min(max(value, 0.0), 1.0) for value in values[-most:] if math.isfinite(value)]
    return "".join(_BARS[min(int(value * len(_BARS)), len(_BARS) - 1)] for value in kept)


def first_and_last(values: Sequence[float]) -> tuple[float, float] | None:
    """The means over the first and the last quarter of a training's steps: how its curve is told in two numbers."""
    quarter = max(1, len(values) // 4)
    return (fmean(values[:quarter]), fmean(values[-quarter:])) if values else None


def time_left(seconds: float, done: int, total: int | None) -> str:
    """How long the rest will take at the pace so far; empty where there is no pace yet."""
    if not total or done <= 0 or done >= total or seconds < _TOO_EARLY:
        return ""
    left = seconds / done * (total - done)
    return f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"


class LineProgress(Progress):
    """A line when something begins, one when it ends, and one every few seconds between: for pipes and logs."""

    def __init__(self, write: Any, *, every: float = 10.0) -> None:
        self._write = write
        self._every = every
        self._title = ""
        self._total: int | None = None
        self._done = 0
        self._began = self._last = time.monotonic()

    def begin(self, title: str, total: int | None) -> None:
        self._title, self._total, self._done = title, total, 0
        self._began = self._last = time.monotonic()
        self.say(f"{title} ...")

    def advance(self, done: int, note: str = "") -> None:
        self._done = done
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            of = f"/{self._total}" if self._total else ""
            left = time_left(now - self._began, done, self._total)
            self.say(", ".join(filter(None, (f"{self._title}: {done}{of} {note}".rstrip(), left))))

    def pulse(self, note: str) -> None:
        self.advance(self._done, note)

    def end(self, note: str = "") -> None:
        self.say(f"{self._title}: {note or 'done'} ({time.monotonic() - self._began:.0f} s)")

    def say(self, text: str) -> None:
        self._write(printable(text))


@dataclass
class _StageRow:
    """One line of the live table; `seconds` is set when the stage has ended."""

    title: str
    total: int | None
    began: float
    done: int = 0
    note: str = ""
    values: list[float] = field(default_factory=list)
    seconds: float | None = None

    def cells(self, now: float) -> tuple[str, str, str, str, str]:
        of = f"{self.done} of {self.total}" if self.total else ""
        if self.seconds is not None:
            return (
                f"[green]done[/green] {self.title}",
                of,
                bars(self.values),
                self.note,
                f"{self.seconds:.0f} s",
            )
        left = time_left(now - self.began, self.done, self.total)
        time_so_far = f"{now - self.began:.0f} s" + (f", {left}" if left else "")
        return f"[bold]{self.title}[/bold]", of, bars(self.values), self.note, time_so_far


class LiveProgress(Progress):
    """A live table in a terminal: stage, how much of it is done, its reward curve, what it says, time and time left."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        self._rows: list[_StageRow] = []
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def begin(self, title: str, total: int | None) -> None:
        self._rows.append(_StageRow(title, total, time.monotonic()))

    def advance(self, done: int, note: str = "") -> None:
        self._rows[-1].done, self._rows[-1].note = done, note

    def plot(self, value: float) -> None:
        self._rows[-1].values.append(value)

    def pulse(self, note: str) -> None:
        if self._rows and self._rows[-1].seconds is None:
            self._rows[-1].note = note

    def end(self, note: str = "") -> None:
        row = self._rows[-1]
        row.note, row.seconds = note, time.monotonic() - row.began

    def say(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False)

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in ("stage", "done", "reward", "", "time"):
            table.add_column(name if self._rows else "", no_wrap=name == "reward", header_style="dim")
        for row in self._rows:
            table.add_row(*map(printable, row.cells(time.monotonic())))
        return table
