"""How many CPUs and how much memory this process may use: in a container less than the machine has."""

import contextlib
import errno
import fcntl
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from scope_selfplay.base.errors import StorageError

Item = TypeVar("Item")
Found = TypeVar("Found")
_WORTH_PROCESSES, _MOST_PROCESSES = 2_000, 8
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number of this size where there is no limit."""
_QUOTA = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Microseconds of CPU in a period of so many: cgroup v2, then v1."""
_MEMORY = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        *("memory/memory.stat", "total_inactive_file"),
    ),
)
"""Limit, use, and which of its statistics is a cache of files that can be dropped: cgroup v2, then v1."""


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """CPUs of the process's affinity and of its container's limit, a part of one counted as one."""
    try:
        mine = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has none
        mine = os.cpu_count() or 1
    quota, period = next((found for names in _QUOTA if (found := _numbers(cgroup, *names))), (0, 0))
    return max(1, min(mine, math.ceil(quota / period))) if quota > 0 and period > 0 else mine


def memory_limit(cgroup: Path = _CGROUP) -> int | None:
    """The container's limit in bytes; None without one."""
    return _memory(cgroup)[0]


def memory_left(cgroup: Path = _CGROUP) -> int | None:
    """Bytes of the container's limit that are not in use, as the kubelet counts: files that are merely cached are not,
    such as weights that were read. None without a limit."""
    limit, used = _memory(cgroup)
    return None if limit is None else max(0, limit - used)


def _memory(cgroup: Path) -> tuple[int | None, int]:
    """The limit, and what is in use."""
    for most, in_use, statistics, cached in _MEMORY:
        for limit in _numbers(cgroup, most):
            (used,) = _numbers(cgroup, in_use) or (0,)
            return limit if limit < _UNLIMITED else None, used - _statistic(cgroup / statistics, cached)
    return None, 0


def _numbers(cgroup: Path, *names: str) -> tuple[int, ...]:
    """What files hold; nothing for `max`, and where one is not there."""
    try:
        return tuple(int(word) for name in names for word in (cgroup / name).read_text().split())
    except (OSError, ValueError):
        return ()


def _statistic(file: Path, name: str) -> int:
    """0 for one that is not there."""
    try:
        lines = (line.partition(" ") for line in file.read_text().splitlines())
        return next((int(value) for key, _, value in lines if key == name), 0)
    except (OSError, ValueError):
        return 0


_TAKEN = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def folder_lock(
    folder: Path, file: Path, *, work: str, say: Callable[[str], None], timeout: float
) -> Iterator[int]:
    """Hold `file`, which locks `folder`, until the block has ended, and every process that inherited the handle that it
    gives. `work` is what is done, as "writing".

    On a volume without locks there is no protection, and a message says so. Raises StorageError when another process
    still holds the lock after `timeout` seconds, OSError where the file cannot be written. The file stays: a lock that
    is removed can be held twice.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locked(handle, folder, work, say, timeout):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield handle
    finally:
        os.close(handle)


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_locked(file: Path) -> bool:
    """Whether somebody holds this lock now."""
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(handle)
    return False


def _locked(handle: int, folder: Path, work: str, say: Callable[[str], None], timeout: float) -> bool:
    """False where the volume knows no locks."""
    end, told = time.monotonic() + timeout, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                say(
                    f"{folder}: the volume has no locks ({error.strerror}); see that nothing else is {work} here"
                )
                return False
        holder = os.pread(handle, 200, 0).decode("utf-8", "replace") or "another process"
        if time.monotonic() > end:
            raise StorageError(
                f"{folder}: {holder} is {work} there; wait for it or stop it, then run the same command again"
            )
        if not told:
            say(f"{folder}: waiting up to {timeout:.0f} s for {holder}, which is {work} there")
            told = True
        time.sleep(min(1.0, timeout / 10))


def in_processes(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """What becomes of each item, in their order; by all cores where there are many."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    cores = min(available_cpus(), _MOST_PROCESSES)
    if len(items) < _WORTH_PROCESSES or cores < 2:
        yield from map(work, items)
        return
    done = 0
    # A script whose main part is not guarded cannot start processes.
    processes = ProcessPoolExecutor(cores, get_context("forkserver"))
    with contextlib.suppress(BrokenProcessPool), processes as pool:
        for each in pool.map(work, items, chunksize=64):
            done += 1
            yield each
    yield from map(work, items[done:])
