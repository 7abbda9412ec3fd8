"""The most memory that this process has held so far, for programs that tests start.

Not `getrusage`: its peak begins with that of the process that started this one.
"""

import re
from pathlib import Path

STATUS = Path("/proc/self/status")
REPOSITORY = Path(__file__).parents[1]
"""Where such a program has to be started, to find this module."""


def peak_memory() -> int:
    """In bytes; Linux only."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
