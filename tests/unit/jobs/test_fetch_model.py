"""`python -m jobs fetch-model`, as far as it comes without a hub."""

import os
import subprocess
import sys
from pathlib import Path

from scope_selfplay.base.errors import ExitCode


def test_fetching_offline_is_the_users_mistake_and_nothing_to_repeat(tmp_path: Path) -> None:
    # A process of its own: the hub's client reads the variable once, when it is loaded.
    done = subprocess.run(
        [sys.executable, "-m", "jobs", "fetch-model", "--model", "a/b", "--folder", str(tmp_path / "b")],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.USER
    assert "HF_HUB_OFFLINE is set: a/b cannot be fetched" in done.stderr
    assert "again" not in done.stderr and not any(tmp_path.iterdir())
