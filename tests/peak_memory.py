"""The most memory that a process has held so far, measured in programs that tests start.

Not `getrusage`: its peak begins with that of the process that started this one.
"""

import re
import sys
from pathlib import Path

import pytest

from tests.commands import ran

STATUS = Path("/proc/self/status")
REPOSITORY = Path(__file__).parents[1]


def peak_memory() -> int:
    """In bytes; Linux only."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def printed(program: str, *arguments: Path) -> int:
    """The number that a Python program prints; it finds this module. Skips where there is no /proc."""
    if not STATUS.exists():
        pytest.skip("the peak of a process is read from Linux's /proc")
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return int(ran(command, check=True, cwd=REPOSITORY).stdout)
