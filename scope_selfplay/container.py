"""How many CPUs and how much memory this process may use: in a container less than the machine has."""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number of this size where there is no limit."""
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
    limit = _limit(cgroup)
    return mine if limit is None else max(1, min(mine, math.ceil(limit)))


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
    for *files, statistics, cached in _MEMORY:
        limit, used = (_number(cgroup / name) for name in files)
        if limit is not None:
            in_use = (used or 0) - _statistic(cgroup / statistics, cached)
            return limit if limit < _UNLIMITED else None, in_use
    return None, 0


def _statistic(file: Path, name: str) -> int:
    """0 for one that is not there."""
    try:
        lines = (line.partition(" ") for line in file.read_text().splitlines())
        return next((int(value) for key, _, value in lines if key == name), 0)
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    """None for `max`, and for a file that is not there."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _limit(cgroup: Path) -> float | None:
    """CPUs that the container's quota allows: cgroup v2, then v1; None without one."""
    for read in (_limit_v2, _limit_v1):
        try:
            quota, period = read(cgroup)
        except (OSError, ValueError):
            continue
        return quota / period if quota > 0 and period > 0 else None
    return None


def _limit_v2(cgroup: Path) -> tuple[int, int]:
    """ValueError for `max`: no limit."""
    quota, period = (cgroup / "cpu.max").read_text().split()
    return int(quota), int(period)


def _limit_v1(cgroup: Path) -> tuple[int, int]:
    quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota), int(period)
