"""Commands that tests run in processes of their own."""

import subprocess
from collections.abc import Sequence
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
