"""The secret of a run's fences: random, made with the run, kept in its folder and in no prompt."""

import os
import secrets
from pathlib import Path

from scope_selfplay.errors import RecordError
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.store.files import disk_faults, publish_once

KEY_FILE = "fence.key"
_BYTES = 32


def run_key(folder: Path, *, seed: int, began_before: bool) -> bytes:
    """The key of the run in `folder`; every process and every later start gets the same one.

    A run that `began_before` runs had keys of their own keeps the one that followed from its seed: with another one,
    every judgement that it has paid for would be asked again. Raises RecordError for a damaged file.
    """
    path = folder / KEY_FILE
    if not path.exists():
        _make(path, fence_key(seed) if began_before else secrets.token_bytes(_BYTES))
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except (ValueError, UnicodeDecodeError):
        key = b""
    if len(key) != _BYTES:
        raise RecordError(
            f"{path}: damaged, expected {2 * _BYTES} hex digits; restore the file, or delete it: judgements are then "
            "asked again"
        )
    return key


def _make(path: Path, key: bytes) -> None:
    """Written whole and only once, whoever else makes it at the same time: the first one wins."""
    own = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        own.touch(mode=0o600)
        own.write_text(f"{key.hex()}\n", "ascii")
        try:
            publish_once(own, path)
        finally:
            own.unlink(missing_ok=True)
