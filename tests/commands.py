"""Commands that tests run in processes of their own, and what they wait for."""

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any


def ran(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that has ended, whatever its exit code, and what it said; options are those of `subprocess.run`."""
    kept: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "check": False,
    }
    return subprocess.run(command, **{**kept, **options})


def wait_until(holds: Callable[[], object], *, seconds: float = 120, every: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(every)
