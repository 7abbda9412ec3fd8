"""One process writes a stage at a time.

Two can meet there: a Job's pod that is still saving while the one that replaces it has started already, or the same
command in two terminals. The second waits for the first; both would append to the same files otherwise.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from scope_selfplay.sole_holder import Deed, open_lock, sole_holder
from scope_selfplay.store.atomic import disk_faults

PATIENCE = 180.0
"""Seconds: longer than a stopped pod may take to save, and than a network volume takes to forget a lost node."""
_WRITE = Deed("writes", "writing")


@contextlib.contextmanager
def sole_writer(
    folder: Path, *, say: Callable[[str], None] = lambda line: None, patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock beside `folder`, as `sole_holder` does; StorageError where no file can be written."""
    path = folder.with_name(f".{folder.name}.lock")
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open_lock(path)
    with sole_holder(handle, folder, _WRITE, say=say, patience=patience):
        yield
