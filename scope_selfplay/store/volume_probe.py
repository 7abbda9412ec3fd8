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
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.errors import ConfigError
from scope_selfplay.store.files import FOLDER_FAULTS


@dataclass(frozen=True)
class VolumeFault:
    ability: str
    reason: str
    consequence: str
    is_fatal: bool

    def __str__(self) -> str:
        return f"cannot {self.ability} ({self.reason}): {self.consequence}"


_FATAL = "no run can work on it"
_ACCESS = "give the group of the pods write access (fsGroup, or the export's own user mapping), or take another volume"


def probe_volume(place: Path) -> list[VolumeFault]:
    """Everything that the volume of this folder cannot do; what is tried leaves nothing behind."""
    folder = place / f".scope-probe-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        return [VolumeFault("write", _words(error), f"{_FATAL}; {_ACCESS}", is_fatal=True)]
    try:
        found = [fault for probe in _PROBES if (fault := _tried(probe, folder)) is not None]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def check_volume(place: Path, say: Callable[[str], None]) -> str:
    """Probe and say in one line what the volume lacks, and give that line.

    Raises ConfigError where no run can work on it.
    """
    faults = probe_volume(place)
    if any(fault.is_fatal for fault in faults):
        raise ConfigError(f"{place}: the volume {'; '.join(map(str, faults))}")
    if not faults:
        return f"{place}: the volume can do all that a run needs"
    line = f"{place}: the volume {'; '.join(map(str, faults))}"
    say(f"warning: {line}")
    return line


@dataclass(frozen=True)
class _Probe:
    ability: str
    attempt: Callable[[Path], None]
    consequence: str
    is_fatal: bool = False


def _tried(probe: _Probe, folder: Path) -> VolumeFault | None:
    try:
        probe.attempt(folder)
    except OSError as error:
        return VolumeFault(probe.ability, _words(error), probe.consequence, probe.is_fatal)
    return None


def _words(error: OSError) -> str:
    return error.strerror or str(error)


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
    for _ in range(2):
        with suppress(FileExistsError):
            os.close(os.open(folder / "once", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            continue
        return
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
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError(errno.EIO, "two held the same lock")


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Others are faults of the disk, which writing has met already.
        if error.errno in FOLDER_FAULTS:
            raise
    finally:
        os.close(handle)


def _own(folder: Path) -> None:
    """Other pods have the same user or at least the group: both must be what this process has."""
    found = (folder / "owned").open("wb")
    with found:
        status = os.fstat(found.fileno())
    groups = {os.getegid(), *os.getgroups()}
    if status.st_uid != os.geteuid() and status.st_gid not in groups:
        raise OSError(
            errno.EPERM, f"a new file belongs to {status.st_uid}:{status.st_gid}, not to {os.geteuid()}"
        )


_PROBES = (
    _Probe("write", _write, f"{_FATAL}; {_ACCESS}", is_fatal=True),
    _Probe("rename", _rename, f"{_FATAL}; take a volume whose renames are atomic", is_fatal=True),
    _Probe("create a file once", _create_once, "two pods may finish one stage; do not start a run twice"),
    _Probe("link", _link, "manifests are published without, forks copy"),
    _Probe(
        "lock", _lock, "two pods may write one stage; do not start a run twice, and end stuck pods by hand"
    ),
    _Probe("flush a folder", _flush_folder, "a power cut may take the names of the newest files"),
    _Probe("give files to this user", _own, f"other pods may not change them; {_ACCESS}"),
)
