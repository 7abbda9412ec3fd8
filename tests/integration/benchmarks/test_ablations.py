"""An ablation from its command to its page, killed on the way: two runs and a fork of a policy that talks at random."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")

from benchmarks.ablations.arms import Arm, Laboratory, make_all
from benchmarks.ablations.measures import FinishedRun, asked_scores, on_source
from benchmarks.scope_command import ROOT
from scope_selfplay.judge import LexicalJudge
from scope_selfplay.schemas import Candidate, Criterion
from scope_selfplay.store import RunFolder, Stage, read_records
from tests.integration.loop.policies import write_speaking_policy
from tests.integration.loop.test_run import SETTINGS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    policy = write_speaking_policy(tmp_path_factory.mktemp("speaking-policy"))
    skipped = ("name=", "seed=", "iterations=")
    settings = [each for each in SETTINGS.split() if not each.startswith(skipped)]
    return [*settings, "iterations=1", f"model.path={policy}"]


def command(root: Path, overrides: list[str], *more: str) -> list[str]:
    sets = [part for each in overrides for part in ("--set", each)]
    places = ["--root", str(root), "--docs", str(root / "docs")]
    return [sys.executable, "-m", "benchmarks.ablations", "--seeds", "4", *places, *sets, *more]


def manifests(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(root.glob("seed-4/*/*/*/manifest.json"))}


def killed_once_there_is(wanted: Path, line: list[str]) -> None:
    """Starts the command, and kills it with all its processes as soon as the file is there."""
    with subprocess.Popen(line, cwd=ROOT, start_new_session=True) as begun:
        try:
            while not wanted.exists():
                assert begun.poll() is None, "ended before it was killed"
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(begun.pid, signal.SIGKILL)


def run_to_the_end(line: list[str]) -> None:
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_ablation_goes_on_after_a_kill_and_ends_as_a_page(overrides: list[str], tmp_path: Path) -> None:
    line = command(tmp_path, overrides, "--only", "gates", "--write")
    killed_once_there_is(tmp_path / "seed-4/co-evolving/iteration-00/tasks/manifest.json", line)
    before = manifests(tmp_path)
    assert before and not (tmp_path / "gates.md").exists()

    run_to_the_end(line)
    after = manifests(tmp_path)
    assert before.items() <= after.items() and len(after) > len(before)
    page = (tmp_path / "docs" / "ablations.md").read_text()
    assert "without gates" in page and "| `no-gates` |" in page
    for image in ("gates-on-source", "gates-asked"):
        assert f"images/ablation-{image}.svg" in page
        assert (tmp_path / "docs" / "images" / f"ablation-{image}.svg").exists()

    # Once more: nothing runs, and the same page comes out.
    run_to_the_end(line)
    assert manifests(tmp_path) == after and (tmp_path / "docs" / "ablations.md").read_text() == page


def test_noisy_arms_share_tasks_and_start_and_are_measured_without_noise(
    overrides: list[str], tmp_path: Path
) -> None:
    start = Arm("start")
    noise = ("judge.noise.first=0.5", "judge.noise.wrong=0.5", "solver.reward=balanced")
    arm = Arm("spoilt", noise, of=start, tasks_of=start)
    laboratory = Laboratory(tmp_path, tuple(overrides))
    make_all([arm], [4], laboratory, jobs=2)
    folder = RunFolder(laboratory.folder(arm, 4))
    assert (
        not folder.stage(1, Stage.TASKS).path.exists() and not folder.stage(1, Stage.CHALLENGER).path.exists()
    )
    summary = json.loads(folder.summary.read_text())
    assert summary["judge_noise"] == "wrong 50%, first 50%"
    assert "errs on purpose" in (folder.path / "README.md").read_text()
    comparisons = folder.stage(1, Stage.COMPARE).comparisons.read_text()
    assert "judge.noise.wrong" in comparisons or "judge.noise.first" in comparisons

    run = FinishedRun(folder.path)
    assert isinstance(run.judge, LexicalJudge)
    tasks = {
        each.task.id for each in read_records(folder.stage(0, Stage.TASKS).candidates, Candidate) if each.task
    }
    scores = asked_scores(run, 1)
    assert scores and set(scores) <= tasks and all(0 <= score <= 1 for score in scores.values())
    told = FinishedRun(laboratory.folder(start, 4))
    assert set(on_source(told, 1).values()) <= {0.0, 1.0}
    made = asyncio.run(run.judge.grade(next(iter(run.candidates(0))).task, Criterion(text="?"), "-", key=()))
    assert "on purpose" not in made.reasoning
