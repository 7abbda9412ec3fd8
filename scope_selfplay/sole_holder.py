"""A file that one process holds at a time; the next one waits, and is told for whom."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.errors import StorageError

_TAKEN = (errno.EAGAIN, errno.EACCES)


class Deed(NamedTuple):
    """What is done in the folder under the lock, as its messages say it."""

    does: str
    doing: str


def open_lock(path: Path) -> int:
    """The file to hold; leave it there, for a lock that is removed can be held twice. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


@contextlib.contextmanager
def sole_holder(
    handle: int, folder: Path, deed: Deed, *, say: Callable[[str], None], patience: float
) -> Iterator[None]:
    """Hold the lock of an `open_lock`, and close it; it is let go with the process, however that ends.

    On a volume without locks there is no protection, which is said. Raises StorageError when another process still
    holds the lock after `patience` seconds.
    """
    try:
        if _locked(handle, folder, deed, say, patience):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, folder: Path, deed: Deed, say: Callable[[str], None], patience: float) -> bool:
    """False where the volume knows no locks."""
    end, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                say(
                    f"{folder}: the volume has no locks ({error.strerror}); see that nothing else {deed.does} here"
                )
                return False
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace") or "another process"
        if time.monotonic() > end:
            raise StorageError(
                f"{folder}: {holder} is {deed.doing} there; wait for it or stop it, then run the same command again"
            )
        if not told:
            say(f"{folder}: waiting up to {patience:.0f} s for {holder}, which is {deed.doing} there")
            told = True
        time.sleep(min(1.0, patience / 10))
