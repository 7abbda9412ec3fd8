"""What a process may use of CPUs and memory; that one process at a time works in a folder; and that a fault of the
machine ends with one line, whatever library met it and however deep, where a bug of ours stays one."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, StorageError, machine_fault
from scope_selfplay.base.machine import available_cpus, folder_lock, memory_left, memory_limit

MINE = len(os.sched_getaffinity(0))


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, min(2, MINE)),
        ({"cpu.max": "9900000 100000\n"}, MINE),
        ({"cpu.max": "max 100000\n"}, MINE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "what is this"}, MINE),
        ({}, MINE),
    ],
)
def test_the_quota_of_a_container_counts(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    write_files(tmp_path, files)
    assert available_cpus(tmp_path) == expected


V2 = ("memory.max", "memory.current", "memory.stat")
V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
CACHED = "cache 9\ninactive_anon 5\n{}inactive_file 900000000\n"
"""Weights that were read from a volume count as used until something else wants the room."""


@pytest.mark.parametrize(
    ("names", "texts", "limit", "left"),
    [
        (V2, ("1073741824\n", "1000000000\n", CACHED.format("")), 1_073_741_824, 973_741_824),
        (V2, ("max\n", "7179869184\n"), None, None),
        (V1, ("1073741824\n", "1000000000\n", CACHED.format("total_")), 1_073_741_824, 973_741_824),
        (V1, ("1073741824\n", "1073741825\n"), 1_073_741_824, 0),
        (V1, ("9223372036854771712\n", "73741824\n"), None, None),
        ((), (), None, None),
    ],
)
def test_memory_is_read_as_either_version_writes_it_and_what_is_merely_cached_is_free(
    names: tuple[str, ...], texts: tuple[str, ...], limit: int | None, left: int | None, tmp_path: Path
) -> None:
    write_files(tmp_path, dict(zip(names, texts, strict=False)))
    assert (memory_limit(tmp_path), memory_left(tmp_path)) == (limit, left)


HOLDER = """
import sys
from pathlib import Path
from scope_selfplay.base.machine import folder_lock
folder = Path(sys.argv[1])
with folder_lock(folder, folder.with_name(f".{folder.name}.lock"), work="writing", say=print, timeout=0):
    print("held", flush=True)
    sys.stdin.readline()
"""


def writing(
    folder: Path, *, say: Callable[[str], None] = print, timeout: float = 0.0
) -> AbstractContextManager[None]:
    lock = folder.with_name(f".{folder.name}.lock")
    return folder_lock(folder, lock, work="writing", say=say, timeout=timeout)


@contextmanager
def held_elsewhere(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.integration
def test_a_folder_that_another_process_writes_is_refused_by_name_and_one_beside_it_is_free(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with held_elsewhere(tmp_path / "solver") as process:
        with (
            pytest.raises(StorageError, match=rf"solver: process {process.pid} on .* is writing there; wait"),
            writing(tmp_path / "solver", say=said.append, timeout=0.2),
        ):
            pytest.fail("two writers")
        with writing(tmp_path / "tasks"):
            assert {path.name for path in tmp_path.iterdir()} == {".solver.lock", ".tasks.lock"}
    assert len(said) == 1 and "waiting up to 0 s" in said[0]


@pytest.mark.integration
def test_the_second_goes_on_when_the_first_is_killed(tmp_path: Path) -> None:
    def kill(line: str) -> None:
        process.kill()

    with held_elsewhere(tmp_path / "solver") as process, writing(tmp_path / "solver", say=kill, timeout=120):
        assert process.wait(60) != 0


def test_a_volume_without_locks_is_named_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with writing(tmp_path / "solver", say=said.append):
        pass
    assert len(said) == 1 and "the volume has no locks" in said[0]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *[(each, ExitCode.OUTSIDE) for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)],
        *[(each, ExitCode.OUTSIDE) for each in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE)],
        *[(each, ExitCode.USER) for each in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)],
    ],
)
def test_the_systems_own_errors_name_the_file_and_what_to_do(number: int, code: ExitCode) -> None:
    fault = machine_fault(OSError(number, os.strerror(number), "some/file"))
    assert fault is not None and fault.exit_code == code
    assert str(fault).startswith(f"some/file: {os.strerror(number)}; ")


def test_the_fault_is_found_under_what_was_raised_from_it_and_in_groups() -> None:
    cause = OSError(errno.ENOSPC, "No space left on device", "a")
    wrapped, handling = RuntimeError("the checkpoint failed"), KeyError("step")
    wrapped.__cause__, handling.__context__ = cause, wrapped
    group = ExceptionGroup("several", [ValueError("x"), handling])
    assert str(machine_fault(group)) == "a: No space left on device; make room, then run again"
    said = machine_fault(RuntimeError("Error while serializing: No space left on device (os error 28)"))
    assert str(said) == "No space left on device; make room, then run again"


def test_what_a_machine_did_not_do_stays_a_bug() -> None:
    loop = ValueError("ours")
    loop.__context__ = TypeError("also ours")
    loop.__context__.__context__ = loop
    for error in (loop, FileNotFoundError(errno.ENOENT, "No such file", "x"), RuntimeError("unexpected")):
        assert machine_fault(error) is None
