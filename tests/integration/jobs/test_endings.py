"""How a job ends, seen from outside: its exit code and one line that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import write_model

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Its model looks like one; no weights are loaded before a stage's turn."""
    file = tmp_path / "run.yaml"
    model = write_model(tmp_path / "model")
    settings = (
        f"name: tiny\ndomain: embedded\niterations: 1\nmodel: {{path: {model}}}\ncorpus: {{sample: 16}}\n"
    )
    file.write_text(settings)
    return file


def job(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs", name, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


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
    with (mounted / "solver.md").open("a") as prompt:
        prompt.write("Be brief.\n")
    ended = job("compare", *where)
    assert ended.returncode == 64 and "was begun with prompts" in ended.stderr


def test_one_job_makes_a_shard_and_another_collects(config: Path, tmp_path: Path) -> None:
    where = ("--config", config, "--root", tmp_path / "runs", "--iteration", 1)
    ended = job("make-tasks", *where, "--shard", "0/2", "--collect")
    assert ended.returncode == 64 and "--shard and --collect" in ended.stderr
