"""A command in a shell: errors become one line and an exit code, progress goes to stderr.

Exit codes are those of `errors.ExitCode`; a job and `scope` end alike.
"""

import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn

import click

from scope_selfplay.errors import ExitCode, ScopeError
from scope_selfplay.machine_faults import machine_fault
from scope_selfplay.progress import LineProgress, LiveProgress, Progress
from scope_selfplay.untrusted_text import one_line, printable

_INTERRUPTED_QUERY = "Query interrupted"
"""What DuckDB makes of a Ctrl-C while it works, as a RuntimeError."""


def run_command(command: click.Command, name: str) -> None:
    """Run a command line to its end: every error that we raise on purpose becomes one line and its exit code."""
    sys.unraisablehook = _raise_again
    try:
        ended = command.main(prog_name=name, standalone_mode=False)
        # What a command gives to `Context.exit`; click returns it where it does not exit itself.
        if isinstance(ended, int) and ended:
            sys.exit(ended)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        _show_usage_error(error, name)
        sys.exit(ExitCode.USER)
    except ScopeError as error:
        click.echo(f"{name}: {one_line(str(error))}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _end_as_stopped(name)
    except BrokenPipeError:
        # The reader of our output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # noqa: BLE001 - the outermost caller: our own bug, or the machine's
        if str(error) == _INTERRUPTED_QUERY:
            _end_as_stopped(name)
        fault = machine_fault(error)
        if fault is not None:
            click.echo(f"{name}: {one_line(str(fault))}", err=True)
            sys.exit(fault.exit_code)
        traceback.print_exc()
        click.echo(f"{name}: this is a bug in scope; please report it with the lines above", err=True)
        sys.exit(ExitCode.BUG)


def _end_as_stopped(name: str) -> NoReturn:
    click.echo(f"{name}: stopped; run the same command to go on", err=True)
    sys.exit(ExitCode.INTERRUPTED)


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


def end_on_sigterm() -> None:
    """Let SIGTERM end this process with 143 from wherever it is; what it had finished is on disk already.

    The first process of a container ignores a SIGTERM for which it has no handler. Training and servers put
    their own handler in front of this one while they work.
    """

    def end(number: int, frame: FrameType | None) -> None:
        # Once: a second one must not cut short what the first one began to close.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Not through Python's buffers, which may be in the middle of a write.
        os.write(2, b"SIGTERM: closing what is open; the same command goes on later\n")
        sys.exit(ExitCode.TERMINATED)

    signal.signal(signal.SIGTERM, end)


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
