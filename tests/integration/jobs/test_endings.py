"""How a job ends, seen from outside: its exit code and one line that says what to do."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import write_model

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]
WAITS = """
import time
import sys
from jobs.__main__ import jobs
from scope_selfplay.base.terminal import end_on_sigterm, run_command

@jobs.command()
def waits():
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        print("closed", flush=True)

sys.argv = ["jobs", "waits"]
end_on_sigterm()
run_command(jobs, "python -m jobs")
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Its model looks like one; no weights are loaded before a stage's turn."""
    file = tmp_path / "run.yaml"
    settings = {
        "name": "tiny",
        "domain": "embedded",
        "iterations": 1,
        "model": {"path": str(write_model(tmp_path / "model"))},
        "corpus": {"sample": 16},
    }
    file.write_text(json.dumps(settings))
    return file


def job(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs", name, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def test_a_wrong_setting_ends_with_64_and_its_name(config: Path, tmp_path: Path) -> None:
    ended = job(
        *("compare", "--config", config, "--root", tmp_path / "runs", "--iteration", 1),
        *("--set", "tasks.targt=5"),
    )
    assert ended.returncode == 64
    assert ended.stderr.strip().endswith("did you mean tasks.target?") and ended.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "iteration", "lacking"),
    [("train-challenger", 1, "iteration-00/tasks"), ("make-tasks", 2, "no such stage")],
)
def test_a_stage_before_its_turn_ends_with_64(
    config: Path, tmp_path: Path, name: str, iteration: int, lacking: str
) -> None:
    ended = job(name, "--config", config, "--root", tmp_path / "runs", "--iteration", iteration)
    assert ended.returncode == 64
    assert lacking in ended.stderr and "Traceback" not in ended.stderr


def test_mounted_prompts_other_than_the_runs_own_end_with_64(config: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "prompts" / "embedded"
    mounted.mkdir(parents=True)
    for file in (REPOSITORY / "prompts" / "embedded").glob("*.*"):
        (mounted / file.name).write_bytes(file.read_bytes())
    where = ("--config", config, "--root", tmp_path / "runs", "--prompts", mounted.parent, "--iteration", 1)
    assert "is not finished" in job("compare", *where).stderr
    with (mounted / "solver.md").open("a") as file:
        file.write("Be brief.\n")
    ended = job("compare", *where)
    assert ended.returncode == 64 and "was begun with prompts" in ended.stderr


def test_one_job_makes_a_shard_and_another_collects(config: Path, tmp_path: Path) -> None:
    where = ("--config", config, "--root", tmp_path / "runs", "--iteration", 1)
    ended = job("make-tasks", *where, "--shard", "0/2", "--collect")
    assert ended.returncode == 64 and "--shard and --collect" in ended.stderr


def test_sigterm_ends_a_job_with_143_after_it_has_closed_what_it_opened() -> None:
    child = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert child.stdout is not None and child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 143
    assert child.stdout.read() == "closed\n"
