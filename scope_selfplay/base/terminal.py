"""A command in a shell: errors become one line and an exit code, progress goes to stderr.

Exit codes are those of `errors.ExitCode`; a job and `scope` end alike.
"""

import json
import math
import os
import select
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from io import TextIOWrapper
from pathlib import Path
from statistics import fmean
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, NoReturn, Self

import click

from scope_selfplay.base.errors import ExitCode, Finding, ScopeError, State, machine_fault
from scope_selfplay.base.text import one_line, printable

PATH, FOLDER = click.Path(path_type=Path), click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
"""Types of options and arguments: any path, and one of a folder or a file."""
_BARS, _BARS_IN_ASCII = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_TOO_EARLY = 5.0
"""Seconds in which a pace says nothing yet."""


class Progress:
    """Receives what is going on and returns nothing. The base shows nothing."""

    def begin(self, title: str, total: int | None, before: int = 0) -> None:
        """`before` of the `total` were there already: what is resumed is told no pace that it does not keep."""

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
    drawn = _BARS if _shows_unicode() else _BARS_IN_ASCII
    return "".join(drawn[min(int(value * len(drawn)), len(drawn) - 1)] for value in kept)


def _shows_unicode() -> bool:
    """Whether our output is UTF-8, and not only because Python takes no other for the locale C."""
    is_plain = os.environ.get("LC_ALL") in ("C", "POSIX")
    return not is_plain and (sys.stdout.encoding or "utf-8").lower().startswith("utf")


def first_and_last(values: Sequence[float]) -> tuple[float, float] | None:
    """The means over the first and the last quarter of a training's steps: how its curve is told in two numbers."""
    quarter = max(1, len(values) // 4)
    return (fmean(values[:quarter]), fmean(values[-quarter:])) if values else None


def time_left(seconds: float, done: int, total: int | None, before: int = 0) -> str:
    """How long the rest will take at the pace so far; empty where there is no pace yet."""
    if not total or done <= before or done >= total or seconds < _TOO_EARLY:
        return ""
    left = seconds / (done - before) * (total - done)
    return f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"


class LineProgress(Progress):
    """A line when something begins, one when it ends, and one every few seconds between: for pipes and logs."""

    def __init__(self, write: Any, *, every: float = 10.0) -> None:
        self._write = write
        self._every = every
        self._title = ""
        self._total: int | None = None
        self._done = self._before = 0
        self._began = self._last = time.monotonic()

    def begin(self, title: str, total: int | None, before: int = 0) -> None:
        self._title, self._total, self._done, self._before = title, total, before, before
        self._began = self._last = time.monotonic()
        self.say(f"{title} ...")

    def advance(self, done: int, note: str = "") -> None:
        self._done = done
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            of = f"/{self._total}" if self._total else ""
            left = time_left(now - self._began, done, self._total, self._before)
            self.say(", ".join(filter(None, (f"{self._title}: {done}{of} {note}".rstrip(), left))))

    def pulse(self, note: str) -> None:
        self.advance(self._done, note)

    def end(self, note: str = "") -> None:
        self.say(f"{self._title}: {note or 'done'} ({time.monotonic() - self._began:.0f} s)")

    def say(self, text: str) -> None:
        self._write(printable(text))


class LiveProgress(Progress):
    """A live table in a terminal: stage, how much of it is done, its reward curve, what it says, time and time left."""

    def __init__(self, console: Any) -> None:
        from rich import progress, table

        def cell(text: str, **width: Any) -> progress.TextColumn:
            column = table.Column(no_wrap=True, overflow="ellipsis" if _shows_unicode() else "crop", **width)
            return progress.TextColumn(text, markup=False, table_column=column)

        # What is said gives way on a narrow terminal, the curve behind it first.
        said = cell("{task.fields[note]}  {task.fields[curve]}", ratio=1)
        cells = [cell("{task.fields[title]}"), cell("{task.fields[of]}"), said, cell("{task.fields[left]}")]
        columns = [progress.TextColumn("{task.description}"), *cells, progress.TimeElapsedColumn()]
        self._live = progress.Progress(*columns, console=console, refresh_per_second=4, expand=True)
        self._curve: list[float] = []
        self._total: int | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def begin(self, title: str, total: int | None, before: int = 0) -> None:
        self._began, self._total, self._before, self._curve = time.monotonic(), total, before, []
        empty: dict[str, Any] = dict.fromkeys(("of", "curve", "note", "left"), "")
        self._stage = self._live.add_task("[bold]>[/bold]", total=total, title=printable(title), **empty)

    def advance(self, done: int, note: str = "") -> None:
        of = f"{done} of {self._total}" if self._total else ""
        left = time_left(time.monotonic() - self._began, done, self._total, self._before)
        self._live.update(self._stage, of=of, note=printable(note), left=left)

    def plot(self, value: float) -> None:
        self._curve.append(value)
        self._live.update(self._stage, curve=bars(self._curve))

    def pulse(self, note: str) -> None:
        if self._live.tasks and not self._live.tasks[-1].stop_time:
            self._live.update(self._stage, note=printable(note))

    def end(self, note: str = "") -> None:
        self._live.update(self._stage, description="[green]done[/green]", note=printable(note), left="")
        self._live.stop_task(self._stage)

    def say(self, text: str) -> None:
        self._live.console.print(printable(text), highlight=False, markup=False)


_INTERRUPTED = ("Query interrupted", ": KeyboardInterrupt: ")
"""What DuckDB makes of a Ctrl-C while it works, as a RuntimeError, and pydantic while it writes."""
_STOPPED = "stopped; run the same command to go on"


def scope_command() -> str:
    """What this `scope` is called by in the shell that started it."""
    own, found = Path(sys.executable).with_name("scope"), shutil.which("scope")
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m scope_selfplay"
    is_found = found is not None and own.samefile(found)
    return "scope" if is_found else shlex.quote(str(own).removeprefix(f"{Path.cwd()}/"))


def run_command(command: click.Command, name: str) -> None:
    """Run a command line to its end: every error that we raise on purpose becomes one line and its exit code."""
    sys.unraisablehook = _raise_again
    for stream in (sys.stdout, sys.stderr):
        # What documents and models say is shown in any locale, escaped where it has no such letter.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    # click does not know of it, rich does.
    colour = False if os.environ.get("NO_COLOR") else None
    try:
        ended = command.main(prog_name=name, standalone_mode=False, color=colour)
        # What a command gives to `Context.exit`; click returns it where it does not exit itself.
        if isinstance(ended, int) and ended:
            sys.exit(ended)
    except click.ClickException as error:
        _show_usage_error(error, name)
        sys.exit(ExitCode.USER)
    except ScopeError as error:
        _end(name, one_line(str(error)), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _end(name, _STOPPED, ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the outermost caller: our own bug, or the machine's
        if str(error).endswith(_INTERRUPTED):
            _end(name, _STOPPED, ExitCode.INTERRUPTED)
        if str(error).endswith(f": SystemExit: {ExitCode.TERMINATED.value}"):
            sys.exit(ExitCode.TERMINATED)
        fault = machine_fault(error)
        if fault is not None:
            _end(name, one_line(str(fault)), fault.exit_code)
        traceback.print_exc()
        _end(name, "this is a bug in scope; please report it with the lines above", ExitCode.BUG)


def _end(name: str, said: str, code: ExitCode) -> NoReturn:
    try:
        click.echo(f"{name}: {said}", err=True)
    except OSError:
        # On a full disk nobody can be told; whoever waits still gets the code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C or SIGTERM that came in the middle of a finalizer, where Python drops what is raised, is raised again
    a moment later.
    """
    stop = unraisable.exc_value
    if not isinstance(stop, (KeyboardInterrupt, SystemExit)) or current_thread() is not main_thread():
        sys.__unraisablehook__(unraisable)
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise stop

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _show_usage_error(error: click.ClickException, name: str) -> None:
    """One line, as for every other mistake; a command that was given nothing at all shows its help."""
    context = getattr(error, "ctx", None)
    # Since click 8.2.
    asks_for_help = getattr(click.exceptions, "NoArgsIsHelpError", ())
    if isinstance(error, asks_for_help) or context is None:
        error.show()
        return
    message = " ".join(error.format_message().split()).rstrip(".")
    click.echo(f"{name}: {printable(message)}; see `{context.command_path} --help`", err=True)


@dataclass(frozen=True)
class Table:
    """A head and rows of cells, for a terminal, a page or a card. `title` may be empty."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def are_numbers(self) -> list[bool]:
        """By column: it stands at the right."""
        columns = zip(self.head, *self.rows, strict=True)
        return [all(cell[:1] in "+-0123456789" for cell in cells[1:]) and any(cells[1:]) for cells in columns]

    def text(self) -> Iterator[str]:
        """Columns of equal width; a blank line and the title before them where there is one."""
        if self.title:
            yield from ("", self.title)
        lines = [[one_line(cell) for cell in line] for line in (self.head, *self.rows) if any(line)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for line in lines:
            cells = zip(line, widths, self.are_numbers, strict=True)
            yield "  ".join(
                cell.rjust(width) if is_number else cell.ljust(width) for cell, width, is_number in cells
            ).rstrip()

    def markdown(self) -> Iterator[str]:
        if self.title:
            yield from ("", f"## {self.title}", "")
        yield f"| {' | '.join(self.head)} |"
        yield f"|{'---|' * len(self.head)}"
        yield from (f"| {' | '.join(row)} |" for row in self.rows)


_MARKS = {State.OK: ("ok", "green"), State.WARNING: ("look", "yellow"), State.STOP: ("STOP", "red")}


def show_findings(findings: Sequence[Finding], *, as_json: bool = False) -> None:
    """A line each on stdout, and below what is not ok what to change; or all as one JSON list."""
    if as_json:
        click.echo(json.dumps([vars(each) for each in findings], indent=1))
        return
    for each in findings:
        word, colour = _MARKS[each.state]
        click.echo(f"{click.style(f'{word:4}', fg=colour)} {printable(each.where)}: {printable(each.what)}")
        if each.advice and each.state is not State.OK:
            click.echo(f"     {printable(each.advice)}")


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_options(*options: Decorator) -> Decorator:
    """The options of several commands as one decorator, in the order in which help lists them."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def end_on_sigterm() -> None:
    """Let SIGTERM end this process with 143 from wherever it is; what it had finished is on disk already.

    The first process of a container ignores a SIGTERM for which it has no handler. Training and servers put
    their own handler in front of this one while they work.
    """

    def end(number: int, frame: FrameType | None) -> None:
        # Once: a second one must not cut short what the first one began to close.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Not through Python's buffers, which may be in the middle of a write.
        with suppress(OSError):  # Who read it may have gone.
            os.write(2, b"SIGTERM: closing what is open; the same command goes on later\n")
        sys.exit(ExitCode.TERMINATED)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def received_signals(
    numbers: Iterable[int], came: Callable[[list[int]], object] = lambda received: None
) -> Iterator[list[int]]:
    """While entered, these signals are kept, in order, instead of ending this process; `came` is told of each."""
    received: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        received.append(number)
        came(received)

    before = {number: signal.signal(number, keep) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class HeldSigterm:
    """Until `release`, SIGTERM is noted instead of ending this process, whatever the main thread does."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._held = current_thread() is main_thread()
        if self._held:
            self._before = signal.signal(signal.SIGTERM, lambda *_: None)
            # Written to by the signal itself, also where no Python runs.
            self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def came_within(self, seconds: float) -> bool:
        """Asked by a thread of its own, which closes this in the end."""
        ready = select.select([self._reader], [], [], seconds)[0]
        return bool(ready) and signal.SIGTERM in os.read(self._reader, 64)

    def release(self) -> None:
        if self._held:
            signal.set_wakeup_fd(self._wakeup)
            signal.signal(signal.SIGTERM, self._before)
        os.close(self._writer)

    def close(self) -> None:
        os.close(self._reader)


def quiet_libraries() -> None:
    """Keep libraries from printing into our progress, from using the network, and from crowding a small machine."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # A tiny model on two threads costs several times the CPU of one.
        "OMP_NUM_THREADS": "1",
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A live line in a terminal, plain lines in a pipe."""
    if sys.stderr.isatty():
        from rich.console import Console

        with LiveProgress(Console(stderr=True)) as live:
            yield live
    else:
        yield LineProgress(lambda text: click.echo(text, err=True))
