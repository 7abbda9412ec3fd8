"""Whole files, written atomically, and the lock of the one process that writes a stage.

A reader sees the old file or the new one, never a part; a full disk leaves the old one.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from scope_selfplay.errors import StorageError
from scope_selfplay.sole_holder import Deed, open_lock, sole_holder

PATIENCE = 180.0
"""Seconds: longer than a stopped pod may take to save, and than a network volume takes to forget a lost node."""


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write to a temporary name, fsync, rename. Raises StorageError when the disk is full or not writable."""
    data = content.encode() if isinstance(content, str) else content
    temporary = part_of(path)
    with disk_faults(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def part_of(path: Path) -> Path:
    """A temporary name beside `path`, one for each writer: on a shared volume many pods have the same process id."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """The wall to the disk: every OSError becomes one line that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"{path}: cannot be written ({reason}); make room or fix it, then run again"
        ) from error


@contextlib.contextmanager
def sole_writer(
    folder: Path, *, say: Callable[[str], None] = lambda line: None, patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock beside `folder`, as `sole_holder` does; StorageError where no file can be written.

    Two processes can meet at one stage: a Job's pod that is still saving while its replacement has started, or the
    same command in two terminals. The second waits for the first; both would append to the same files otherwise.
    """
    path = folder.with_name(f".{folder.name}.lock")
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open_lock(path)
    with sole_holder(handle, folder, Deed("writes", "writing"), say=say, patience=patience):
        yield
