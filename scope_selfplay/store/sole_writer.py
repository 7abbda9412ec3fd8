"""One process writes a stage at a time.

Two can meet there: a Job's pod that is still saving while the one that replaces it has started already, or the same
command in two terminals. The second waits for the first; both would append to the same files otherwise.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scope_selfplay.errors import StorageError
from scope_selfplay.store.atomic import disk_faults

PATIENCE = 180.0
"""Seconds: longer than a stopped pod may take to save, and than a network volume takes to forget a lost node."""
_TAKEN = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def sole_writer(
    folder: Path, *, say: Callable[[str], None] = lambda line: None, patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock beside `folder`; it is let go with the process, however that ends.

    On a volume without locks there is no protection, which is said. Raises StorageError when another process still
    holds the lock after `patience` seconds.
    """
    path = folder.with_name(f".{folder.name}.lock")
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locked(handle, folder, say, patience):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, folder: Path, say: Callable[[str], None], patience: float) -> bool:
    """False where the volume knows no locks."""
    end, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                say(
                    f"{folder}: the volume has no locks ({error.strerror}); see that nothing else writes here"
                )
                return False
        writer = os.pread(handle, 200, 0).decode("utf-8", "replace") or "another process"
        if time.monotonic() > end:
            raise StorageError(
                f"{folder}: {writer} is writing there; wait for it or stop it, then run the same command again"
            )
        if not told:
            say(f"{folder}: waiting up to {patience:.0f} s for {writer}, which is writing there")
            told = True
        time.sleep(min(1.0, patience / 10))
