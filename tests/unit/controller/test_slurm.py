"""`examples/slurm.sh` beside a `scope` and a `scontrol` that write down how they were called."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands import wait_until

SCRIPT = Path(__file__).parents[3] / "examples" / "slurm.sh"


def submitted(home: Path, scope: str) -> "subprocess.Popen[bytes]":
    for name, text in (("scope", scope), ("scontrol", "")):
        program = home / name
        program.write_text(f'#!/bin/bash\necho "$@" >> {home}/{name}.calls\n{text}\n')
        program.chmod(0o755)
    environment = {"PATH": f"{home}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SCOPE_PAUSE": "0"}
    return subprocess.Popen(["bash", str(SCRIPT), "run.yaml", "--seed", "3"], cwd=home, env=environment)


@pytest.mark.parametrize(("code", "again"), [(0, False), (64, False), (1, False), (75, True), (143, True)])
def test_a_job_goes_back_into_the_queue_where_the_same_command_goes_on(
    tmp_path: Path, code: int, again: bool
) -> None:
    assert submitted(tmp_path, f"exit {code}").wait(timeout=60) == code
    assert (
        tmp_path / "scope.calls"
    ).read_text() == "run --config run.yaml --root runs --gpus auto --seed 3\n"
    assert (tmp_path / "scontrol.calls").exists() == again


def test_the_signal_before_the_limit_reaches_the_run_which_ends_in_order(tmp_path: Path) -> None:
    job = submitted(
        tmp_path, f"trap 'touch {tmp_path}/saved; exit 143' TERM\ntouch {tmp_path}/runs\nsleep 60 & wait"
    )
    wait_until((tmp_path / "runs").exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == 143
    assert (tmp_path / "saved").exists() and (tmp_path / "scontrol.calls").read_text() == "requeue 7\n"
