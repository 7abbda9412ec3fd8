"""Files that survive a kill: whole files written atomically, and append-only records, one JSON object a line.

A reader of a whole file sees the old one or the new one, never a part; a full disk leaves the old one. A record counts
when its line is complete. A kill can only tear the last line: reading drops it, appending cuts it off first. Damage
anywhere else is an error that names file and line.
"""

import contextlib
import errno
import json
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from scope_selfplay.base.errors import OutsideError, RecordError, StorageError

LINK_FAULTS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What systems say of a link that a volume does not have."""
FOLDER_FAULTS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""What they say where a folder cannot be flushed: SMB, some FUSE volumes."""
CLAIM_SECONDS = 5.0
"""How long one that claimed a name may take for its rename."""
BLOCK = 1 << 16
Model = TypeVar("Model", bound=BaseModel)
Parsed = TypeVar("Parsed")

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
# An id that a record begins with, in its quotes; it may hold commas and escaped quotes.
_FIRST_ID = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*"),')


def cache_folder() -> Path:
    """Of this user: what may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scope"


def write_atomic(path: Path, content: bytes | str, *, exclusive: bool = False) -> None:
    """Write to a temporary name, fsync, rename. Raises StorageError when the disk is full or not writable.

    With `exclusive` the first to write wins, and a later one changes nothing.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = part_of(path)
    with disk_faults(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if exclusive:
                publish_once(temporary, path)
            else:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def publish_once(temporary: Path, path: Path) -> None:
    """Give a finished file its name; where another has it already, nothing changes. May leave `temporary`.

    By a link, which fails where the name is taken. SMB and some FUSE volumes have none: there the first to create a
    file beside it renames, and readers never see a part either way. Whoever finds that file and not the name waits
    a while for its maker; one that was killed in between left its turn to the next.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in LINK_FAULTS:
            raise
        claim = path.with_name(f".{path.name}.claim")
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            end = time.monotonic() + CLAIM_SECONDS
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.05)
        if not path.exists():
            temporary.replace(path)


def point_at(link: Path, target: Path) -> bool:
    """Make `link` a symbolic link to a file or folder, relative where it lies beside or below; whether that worked.

    It does not where a file or folder has the name already, or on a volume that knows no links.
    """
    if link.exists() and not link.is_symlink():
        return False
    here = target.is_relative_to(link.parent)
    temporary = part_of(link)
    try:
        temporary.symlink_to(target.relative_to(link.parent) if here else target.resolve())
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)
        return False
    return True


def part_of(path: Path) -> Path:
    """A temporary name beside `path`, one for each writer: on a shared volume many pods have the same process id."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")


def place_of(folder: Path, name: str) -> Path:
    """Where a file from elsewhere belongs. Raises OutsideError for a name that leads out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        raise OutsideError(f"a file is called {name!r}, which is no path inside a folder; nothing is written")
    return folder.joinpath(*parts)


def sync_folder(folder: Path, tolerated: Collection[int] = FOLDER_FAULTS) -> None:
    """Make renames and new names in a folder survive a power cut, where the volume can do that. An OSError whose errno
    is `tolerated` is not raised.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in tolerated:
            raise
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


class Appender(contextlib.AbstractContextManager["Appender"]):
    """Appends records to a file; each call is one write and one fsync, so what returned is on disk. Any thread may."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        with disk_faults(path):
            # Unbuffered: what a full disk refused must not be tried again when the file is closed.
            self._file: FileIO = path.open("ab", buffering=0)
            with path.open("rb") as written:
                size, complete = written.seek(0, os.SEEK_END), _end_of_lines(written)
            if complete != size:
                self._file.truncate(complete)

    def append(self, *records: BaseModel | dict[str, Any]) -> None:
        data = b"".join(_line(record) for record in records)
        with self._lock, disk_faults(self._path):
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __exit__(self, *ending: object) -> None:
        self.close()


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last complete line ends, found from the file's end: records may be many gigabytes."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        if found := file.read(end - start).rfind(b"\n") + 1:
            return start + found
        end = start
    return 0


def write_records(path: Path, records: Iterable[BaseModel | dict[str, Any]]) -> None:
    """Write a whole file of records at once, atomically."""
    write_atomic(path, b"".join(_line(record) for record in records))


def read_records(path: Path, kind: type[Parsed]) -> list[Parsed]:
    """All complete records; [] when there is no file. Raises RecordError with file and line for damage."""
    return list(stream_records(path, kind))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """As `read_records`, as plain objects."""
    return read_records(path, dict[str, Any])


def stream_records(path: Path, kind: type[Parsed]) -> Iterator[Parsed]:
    """As `read_records`, one at a time: for files that do not fit into memory."""
    if path.exists():
        with path.open("rb") as file:
            yield from (record for _, record in with_lines(file, path, kind))


def with_lines(file: BinaryIO, path: Path, kind: type[Parsed]) -> Iterator[tuple[bytes, Parsed]]:
    """Every complete line of an open file with its record.

    What has no line end was torn by a kill, or is zeros where a write did not reach the disk.
    """
    for number, line in enumerate(file, start=1):
        if line.endswith(b"\n"):
            yield line, _parsed(path, number, line, kind)


def check_lines(path: Path, model: type[BaseModel]) -> None:
    """Raises RecordError with file and line at the first record that is not valid for this model."""
    deque(stream_records(path, model), maxlen=0)


class NewLines:
    """The complete lines that a file got since they were last asked for. A torn last line waits until it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self.offset = 0, 0

    def begin_anew(self) -> bool:
        """Read from the beginning where the file was written anew, or is gone, since something was read; whether so."""
        found = self.path.stat() if self.path.exists() else None
        is_same = found is not None and found.st_ino == self._inode and found.st_size >= self.offset
        if not self.offset or is_same:
            return False
        self.offset = 0
        return True

    def blocks(self, size: int) -> Iterator[bytes]:
        """About `size` bytes at a time. What a caller has done with by the next one is not given again."""
        if self.path.exists():
            with disk_faults(self.path), self.path.open("rb") as file:
                self._inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset)
                for block in line_blocks(file, size):
                    yield block
                    self.offset += len(block)


def line_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The complete lines from a file's position on, about `size` bytes at a time; a longer line comes whole."""
    rest = b""
    while data := file.read(size):
        data = rest + data
        # What follows the last line end was torn by a kill or is being written.
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        if whole:
            yield whole


def read_value(path: Path, kind: type[Parsed], advice: str) -> Parsed | None:
    """The one JSON value of a file, as anything that pydantic knows; None where there is no such file.

    Raises RecordError, which ends with `advice`, where it is damaged or something else; StorageError where the volume
    cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{path}: cannot be read ({reason}); fix it, then run again") from error
    try:
        found: Parsed = _adapter(kind).validate_json(data)
        return found
    except ValidationError as error:
        raise RecordError(f"{path}: damaged ({_fault_of(error)}); {advice}") from None


def find_records(path: Path, record_ids: Collection[str], model: type[Model]) -> dict[str, Model]:
    """The records whose first member is one of these ids, by id, found without parsing the others."""
    wanted = {json.dumps(record_id, ensure_ascii=False).encode(): record_id for record_id in record_ids}
    found: dict[str, Model] = {}
    if not path.exists():
        return found
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            start = _FIRST_ID.match(line)
            name = wanted.pop(start[1], None) if start and line.endswith(b"\n") else None
            if name is not None:
                found[name] = _parsed(path, number, line, model)
            if not wanted:
                break
    return found


def _parsed(path: Path, number: int, line: bytes, kind: type[Parsed]) -> Parsed:
    try:
        found: Parsed = _adapter(kind).validate_json(line)
        return found
    except ValidationError as error:
        raise RecordError(
            f"{path}:{number}: damaged record ({_fault_of(error)}); restore the file or remove it"
        ) from None


def _fault_of(error: ValidationError) -> str:
    """The first fault and its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    unknown = "not known to this version of scope; a newer one may have written it"
    said = unknown if first["type"] == "extra_forbidden" else first["msg"]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), said)))


def _line(record: BaseModel | dict[str, Any]) -> bytes:
    if isinstance(record, BaseModel):
        return record.model_dump_json().encode() + b"\n"
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
