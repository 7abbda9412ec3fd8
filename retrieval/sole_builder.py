"""One process builds an index at a time.

Two can meet there: the same command in two terminals, or a Job's pod that still ends while the one that replaces it has
started already. Both would write the same files otherwise.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.folder_lock import folder_lock

LOCK = "build.lock"
PATIENCE = 60.0
"""Seconds: longer than a stopped pod takes to end."""


@contextlib.contextmanager
def sole_builder(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of `folder`, as `folder_lock` does; OSError where no file can be written."""
    with folder_lock(folder, folder / LOCK, work="building", say=_say, timeout=patience):
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
