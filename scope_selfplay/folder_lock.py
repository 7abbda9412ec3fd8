"""A lock on a folder: one process works in it at a time; the next one waits, and a message says for whom."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scope_selfplay.errors import StorageError

_TAKEN = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def folder_lock(
    folder: Path, file: Path, *, work: str, say: Callable[[str], None], timeout: float
) -> Iterator[None]:
    """Hold `file`, which locks `folder`, until the block or the process ends. `work` is what is done, as "writing".

    On a volume without locks there is no protection, and a message says so. Raises StorageError when another process
    still holds the lock after `timeout` seconds, OSError where the file cannot be written. The file stays: a lock that
    is removed can be held twice.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locked(handle, folder, work, say, timeout):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, folder: Path, work: str, say: Callable[[str], None], timeout: float) -> bool:
    """False where the volume knows no locks."""
    end, told = time.monotonic() + timeout, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                say(
                    f"{folder}: the volume has no locks ({error.strerror}); see that nothing else is {work} here"
                )
                return False
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace") or "another process"
        if time.monotonic() > end:
            raise StorageError(
                f"{folder}: {holder} is {work} there; wait for it or stop it, then run the same command again"
            )
        if not told:
            say(f"{folder}: waiting up to {timeout:.0f} s for {holder}, which is {work} there")
            told = True
        time.sleep(min(1.0, timeout / 10))
