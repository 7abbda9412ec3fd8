"""Keeps one program of a run: it and all that it starts end with the driver, however that ends.

    python -I -S keeper.py DRIVER GRACE LOG COMMAND...

Where the process DRIVER is gone, and on SIGTERM, the program gets a SIGTERM and has GRACE seconds; SIGINT ends it at
once. What it started and left behind is adopted here (Linux' child subreaper) and killed. Its output goes to LOG, of
which one older file is kept. Ends with the program's exit code, as a shell gives it. Only the standard library, so
that it is there at once and small.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LARGEST = 16_000_000
"""Bytes of a log, which is looked at every so many seconds."""
_LOOK = 5.0


def keep(driver: int, grace: float, log: Path, command: list[str]) -> int:
    """The exit code of `command`, when nothing that it started is left."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if os.getppid() != driver:
        return 128 + signal.SIGTERM
    child = os.fork() or _become(libc, log, command)
    end, code = float("inf"), None
    while code is None:
        got = signal.sigtimedwait(_SIGNALS, max(0.0, min(_LOOK, end - time.monotonic())))
        asked = got.si_signo if got is not None and got.si_signo != signal.SIGCHLD else None
        if asked is not None and end == float("inf"):
            end = time.monotonic() + grace
            os.kill(child, signal.SIGTERM)
        if asked == signal.SIGINT or time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
        rotate(log)
        code = _reaped(child)
    while left := _descendants():
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)
        _reaped(child)
    return code


def _become(libc: ctypes.CDLL, log: Path, command: list[str]) -> int:
    """The child: the program. A keeper that is killed takes it along."""
    try:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 1)
        os.dup2(1, 2)
        # The lock of the run is the keeper's to hold.
        os.closerange(3, 256)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    # What a shell says of a program that is not there.
    os._exit(127)


def rotate(log: Path) -> None:
    """The program goes on writing where it writes. A disk that is full stops nothing."""
    with suppress(OSError):
        if log.stat().st_size > LARGEST:
            shutil.copyfile(log, f"{log}.1")
            os.truncate(log, 0)


def _reaped(child: int) -> int | None:
    """The exit code of the program where it has ended; everything else that has is reaped, too."""
    code = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                ended = os.waitstatus_to_exitcode(found[1])
                code = ended if ended >= 0 else 128 - ended
    return code


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The command's name, in brackets, may hold anything.
            parents[int(each.name)] = int((each / "stat").read_bytes().rpartition(b")")[2].split()[1])
    found, mine = set[int](), {os.getpid()}
    while mine := {process for process, parent in parents.items() if parent in mine}:
        found |= mine
    return found


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
