"""One process builds an index at a time.

Two can meet there: the same command in two terminals, or a Job's pod that still ends while the one that replaces it has
started already. Both would write the same files otherwise. `scope_selfplay.store.sole_writer` does the same for stages.
"""

import contextlib
import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.errors import StorageError

LOCK = "build.lock"
"""Stays in the folder: a lock that is removed can be held twice."""
PATIENCE = 60.0
"""Seconds: longer than a stopped pod takes to end."""
_TAKEN = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def sole_builder(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of `folder`; it is let go with the process, however that ends.

    On a volume without locks there is no protection, which is said. Raises StorageError when another process still
    holds the lock after `patience` seconds, OSError where no file can be written.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locked(handle, folder, patience):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, folder: Path, patience: float) -> bool:
    """False where the volume knows no locks."""
    end, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                _say(
                    f"{folder}: the volume has no locks ({error.strerror}); see that nothing else builds here"
                )
                return False
        builder = os.pread(handle, 200, 0).decode("utf-8", "replace") or "another process"
        if time.monotonic() > end:
            raise StorageError(
                f"{folder}: {builder} is building there; wait for it or stop it, then run the same command again"
            )
        if not told:
            _say(f"{folder}: waiting up to {patience:.0f} s for {builder}, which is building there")
            told = True
        time.sleep(min(1.0, patience / 10))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
