"""`.ci/with-cluster`, with stand-ins for the tools that start and stop a cluster."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / ".ci" / "with-cluster"
UP = """\
echo "up $*" >>"$CLUSTER_DIR/log"
touch "$CLUSTER_DIR/running"
[ -z "${UP_FAILS:-}" ] || exit 3
echo "some words before"
echo "export KUBECONFIG=$CLUSTER_DIR/admin.conf"
"""
DOWN = 'echo down >>"$CLUSTER_DIR/log"; rm -f "$CLUSTER_DIR/running"'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which a cluster can be started: its tools, kubectl, and root."""
    scripts = {
        "shared/cluster/up": UP,
        "shared/cluster/down": DOWN,
        "bin/id": "echo 0",
        "bin/kubectl": "true",
    }
    for name, text in scripts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    return {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "CLUSTER_DIR": str(state),
        "SCOPE_SHARED": str(tmp_path / "shared"),
        "KUBECONFIG": "",
    }


def run(environment: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments], env=environment | more, capture_output=True, text=True, timeout=30, check=False
    )


def log(environment: dict[str, str]) -> list[str]:
    path = Path(environment["CLUSTER_DIR"], "log")
    return path.read_text().splitlines() if path.exists() else []


def begun(environment: dict[str, str]) -> "subprocess.Popen[str]":
    """One whose command is under way."""
    script = subprocess.Popen(
        [SCRIPT, "bash", "-c", "echo begun; exec sleep 60"],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    with script.stdout as lines:
        assert "begun\n" in lines
    return script


@pytest.mark.parametrize("code", [0, 5])
def test_a_command_gets_the_cluster_and_its_code_comes_back(environment: dict[str, str], code: int) -> None:
    done = run(environment, "--pods", "bash", "-c", f"echo $KUBECONFIG; exit {code}")
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == f"{environment['CLUSTER_DIR']}/admin.conf"
    assert log(environment) == ["up --pods", "down"]


def test_a_cluster_that_does_not_come_up_is_cleared_away(environment: dict[str, str]) -> None:
    done = run(environment, "echo", "never", UP_FAILS="1")
    assert (done.returncode, "never" in done.stdout) == (3, False)
    assert log(environment) == ["up ", "down"]


def test_a_command_that_is_stopped_leaves_no_cluster(environment: dict[str, str]) -> None:
    script = begun(environment)
    os.killpg(script.pid, signal.SIGTERM)
    assert script.wait(20) == 143
    assert log(environment) == ["up ", "down"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SCOPE_SHARED": "/nowhere"}, "no /nowhere/cluster/up to start a cluster with"),
        ({"id": "echo 1000"}, "starting a cluster needs root"),
    ],
)
def test_where_no_cluster_can_be_started_the_reason_is_said(
    environment: dict[str, str], changes: dict[str, str], reason: str
) -> None:
    if "id" in changes:
        Path(environment["PATH"].split(":")[0], "id").write_text(f"#!/bin/bash\n{changes.pop('id')}\n")
    done = run(environment, "false", **changes)
    assert (done.returncode, done.stdout) == (0, f"== cluster tier skipped: {reason}\n")
    assert log(environment) == []


def test_somebody_elses_cluster_is_left_alone(environment: dict[str, str]) -> None:
    Path(environment["CLUSTER_DIR"], "running").touch()
    done = run(environment, "true")
    assert (done.returncode, "take it down first" in done.stderr) == (75, True)
    assert log(environment) == []


def test_what_a_killed_one_left_is_taken_down(environment: dict[str, str]) -> None:
    script = begun(environment)
    os.killpg(script.pid, signal.SIGKILL)
    script.wait(20)
    assert log(environment) == ["up "]
    done = run(environment, "true")
    assert (done.returncode, "what a killed with-cluster left" in done.stdout) == (0, True)
    assert log(environment) == ["up ", "down", "up ", "down"]


def test_two_take_turns(environment: dict[str, str]) -> None:
    first = begun(environment)
    second = subprocess.Popen([SCRIPT, "true"], env=environment, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("== another with-cluster has the cluster")
    assert log(environment) == ["up "]
    os.killpg(first.pid, signal.SIGTERM)
    assert (first.wait(20), second.wait(20)) == (143, 0)
    assert log(environment) == ["up ", "down", "up ", "down"]
    second.stdout.close()
