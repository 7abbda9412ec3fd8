"""Whole files, written atomically.

A reader sees the old file or the new one, never a part; a full disk leaves the old one.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.errors import StorageError


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
    """Turn every OSError of the disk into a StorageError: one line that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"{path}: cannot be written ({reason}); make room or fix it, then run again"
        ) from error
