"""What a volume can do of what a run needs of it, tried out: write, rename, link, lock, flush a folder, own files.

A run needs the first two. Without links it publishes by other means, without locks or flushed folders it works with
less protection; the probe says which, in one line.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.store.files import sync_folder

_FATAL = "no run can work on it"
_ACCESS = "give the group of the pods write access (fsGroup, or the export's own user mapping), or take another volume"


def probe_volume(place: Path) -> dict[str, str]:
    """Ability -> what the lack of it means, for each that the volume of this folder lacks; nothing is left behind."""
    folder, found = place / f".scope-probe-{secrets.token_hex(4)}", {}
    for ability, (attempt, consequence) in _PROBES.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            attempt(folder)
        except OSError as error:
            found[ability] = f"cannot {ability} ({error.strerror or error}): {consequence}"
            if not folder.is_dir():
                break
    shutil.rmtree(folder, ignore_errors=True)
    return found


def check_volume(place: Path, say: Callable[[str], None]) -> str:
    """Probe and say in one line what the volume lacks, and give that line.

    Raises ConfigError where no run can work on it.
    """
    lacks = list(probe_volume(place).values())
    line = f"{place}: the volume {'; '.join(lacks) or 'can do all that a run needs'}"
    if _FATAL in line:
        raise ConfigError(line)
    if lacks:
        say(f"warning: {line}")
    return line


def _write(folder: Path) -> None:
    content = secrets.token_bytes(1 << 16)
    with (folder / "written").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if (folder / "written").read_bytes() != content:
        raise OSError(errno.EIO, "what was read is not what was written")


def _rename(folder: Path) -> None:
    """Onto a file that is there, and a whole folder."""
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    (folder / "new").replace(folder / "old")
    (folder / "a").mkdir()
    (folder / "a").rename(folder / "b")
    if (folder / "old").read_bytes() != b"new" or (folder / "new").exists() or not (folder / "b").is_dir():
        raise OSError(errno.EIO, "the old file was there afterwards")


def _create_once(folder: Path) -> None:
    """The second of two who create the same file is told so."""
    (folder / "once").touch(exist_ok=False)
    with suppress(FileExistsError):
        (folder / "once").touch(exist_ok=False)
        raise OSError(errno.EIO, "two created the same file")


def _link(folder: Path) -> None:
    (folder / "first").write_bytes(b"")
    os.link(folder / "first", folder / "second")
    with suppress(FileExistsError):
        os.link(folder / "first", folder / "second")
        raise OSError(errno.EIO, "a link replaced a file")


def _lock(folder: Path) -> None:
    """Of two who have the file open, one gets the lock."""
    with (folder / "lock").open("wb") as one, (folder / "lock").open("wb") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise OSError(errno.EIO, "two held the same lock")


def _own(folder: Path) -> None:
    """Other pods have the same user or at least the group: both must be what this process has."""
    (folder / "owned").touch()
    status = (folder / "owned").stat()
    if status.st_uid != os.geteuid() and status.st_gid not in {os.getegid(), *os.getgroups()}:
        text = f"a new file belongs to {status.st_uid}:{status.st_gid}, not to {os.geteuid()}"
        raise OSError(errno.EPERM, text)


_TWICE = "do not start a run twice"
_PROBES: dict[str, tuple[Callable[[Path], None], str]] = {
    "write": (_write, f"{_FATAL}; {_ACCESS}"),
    "rename": (_rename, f"{_FATAL}; take a volume whose renames are atomic"),
    "create a file once": (_create_once, f"two pods may finish one stage; {_TWICE}"),
    "link": (_link, "manifests are published without, forks copy"),
    "lock": (_lock, f"two pods may write one stage; {_TWICE}, and end stuck pods by hand"),
    "flush a folder": (
        partial(sync_folder, tolerated=()),
        "a power cut may take the names of the newest files",
    ),
    "give files to this user": (_own, f"other pods may not change them; {_ACCESS}"),
}
