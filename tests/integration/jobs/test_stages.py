"""The stage jobs as Kubernetes runs them, one process each: stopped, killed, spread over workers; the corpus stays."""

import json
import os
import shutil
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import yaml

from scope_selfplay.base.terminal import Progress, end_on_sigterm, run_command
from scope_selfplay.run.begin import open_run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.train import train_challenger
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from tests.commands import wait_until
from tests.integration.loop.test_run import config_of, forked

CHANGES = ("challenger.steps=4", "tasks.in_flight=4")


def in_child(name: str, arguments: list[str], log: Path) -> None:
    from jobs.__main__ import jobs

    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["jobs", name, *arguments]
    end_on_sigterm()
    run_command(jobs, "python -m jobs")


class Cluster:
    """Starts jobs on one volume."""

    def __init__(self, policy: Path, root: Path) -> None:
        self.folder = RunFolder(root / "runs" / "tiny")
        self.log = root / "log.txt"
        self._config = root / "run.yaml"
        self._config.write_text(yaml.safe_dump(config_of(policy, *CHANGES).model_dump(mode="json")))

    def start(self, name: str, iteration: int, *more: str) -> ForkServerProcess:
        where = ["--config", str(self._config), "--root", str(self.folder.path.parent)]
        arguments = [*where, "--prompts", "/nowhere", "--iteration", str(iteration), *more]
        return forked(in_child, name, arguments, self.log)

    def run(self, name: str, iteration: int, *more: str) -> int:
        return ended(self.start(name, iteration, *more))


def ended(child: ForkServerProcess) -> int:
    child.join(300)
    assert child.exitcode is not None
    return child.exitcode


def lines_below(folder: Path, pattern: str) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob(pattern))


@pytest.fixture(scope="module")
def alone(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same stages in one process, one worker, undisturbed."""
    run = open_run(config_of(speaking_policy, *CHANGES), tmp_path_factory.mktemp("alone"), Progress())
    make_tasks(run, 0)
    compare(run, 0)
    train_challenger(run, 1)
    make_tasks(run, 1)
    return run.folder


def test_jobs_that_are_stopped_killed_and_spread_make_the_same_corpus(
    alone: RunFolder, speaking_policy: Path, tmp_path: Path
) -> None:
    cluster = Cluster(speaking_policy, tmp_path)
    assert cluster.run("make-tasks", 0) == 0
    assert cluster.run("compare", 0) == 0

    challenger = cluster.folder.stage(1, Stage.CHALLENGER)
    trainer = cluster.start("train-challenger", 1)
    wait_until(lambda: lines_below(challenger.path, "metrics.jsonl") >= 1, seconds=200, every=0.005)
    os.kill(trainer.pid or 0, signal.SIGTERM)
    assert ended(trainer) == 143
    assert list(challenger.work.glob("checkpoint-*/receipt.json"))
    assert read_manifest(challenger.path) is None
    assert cluster.run("train-challenger", 1, "--attempt", "2") == 0
    assert (done := read_manifest(challenger.path)) is not None and done.attempt == 2

    shares = cluster.folder.stage(1, Stage.TASKS).work / "shares"
    workers = [cluster.start("make-tasks", 1, "--shard", f"{index}/3") for index in range(3)]
    wait_until(lambda: lines_below(shares, "*/candidates.jsonl") >= 2, seconds=200, every=0.005)
    os.kill(workers[0].pid or 0, signal.SIGKILL)
    os.kill(workers[1].pid or 0, signal.SIGTERM)
    codes = [ended(worker) for worker in workers]
    assert codes == [-signal.SIGKILL, 143, 0]
    assert cluster.run("make-tasks", 1, "--collect") == 75
    assert cluster.run("make-tasks", 1, "--shard", "0/3") == 0
    assert cluster.run("make-tasks", 1, "--shard", "1/3") == 0
    assert cluster.run("make-tasks", 1, "--shard", "1/3") == 0
    # A damaged folder is removed, as its worker is told to do: its documents are made again.
    shutil.rmtree(next(shares.glob("02-of-03-*")))
    assert cluster.run("make-tasks", 1, "--collect") == 75
    assert cluster.run("make-tasks", 1, "--shard", "2/3") == 0
    assert cluster.run("make-tasks", 1, "--collect") == 0
    assert cluster.run("make-tasks", 1, "--shard", "2/3") == 0

    for number, stage in ((0, Stage.TASKS), (0, Stage.COMPARE), (1, Stage.TASKS)):
        one, two = alone.stage(number, stage), cluster.folder.stage(number, stage)
        for name in ("candidates.jsonl", "rollouts.jsonl", "grades.jsonl", "documents.json", "judge.json"):
            assert (one.path / name).exists() == (two.path / name).exists(), name
            if (one.path / name).exists():
                assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), f"{stage} {name}"
    weights = [folder.stage(1, Stage.CHALLENGER).checkpoint for folder in (alone, cluster.folder)]
    assert len({(folder / "model.safetensors").read_bytes() for folder in weights}) == 1
    accounts = json.loads((cluster.folder.stage(1, Stage.TASKS).path / "judge.json").read_text())
    print(f"1 trainer stopped, 1 worker killed, 1 worker stopped: same corpus, {accounts['calls']} verdicts")
