"""A training job that starts its own ranks: real processes over gloo, stopped, and gone on with as two nodes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml

from jobs.launch import TrainingNode, rank_environments, sharding_environment
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Stage, read_manifest
from tests.integration.loop.policies import write_sums

REPOSITORY = Path(__file__).parents[3]
RUN_FILE = REPOSITORY / "examples" / "maths" / "run.yaml"
SETTINGS = """
    name=sums iterations=1 seed=1 model.slots=16 solver.steps=3 solver.batch=2 solver.group_size=4
    solver.learning_rate=1e-2 solver.max_prompt=900 solver.max_response=60
    solver.save_every=1 model.max_length=1000
"""


class Training:
    """A run whose next stage is the Solver's training, on two given tasks."""

    def __init__(self, root: Path) -> None:
        config = load_config(RUN_FILE, [*SETTINGS.split(), *write_sums(root).settings])
        run = open_run(config, root / "runs", Progress())
        make_tasks(run, 0)
        compare(run, 0)
        self.folder = run.folder.stage(1, Stage.SOLVER)
        self._config = root / "run.yaml"
        self._config.write_text(yaml.safe_dump(config.model_dump(mode="json")))

    def start(self, *more: str, told: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        where = ["--config", str(self._config), "--root", str(self.folder.path.parents[2])]
        command = [sys.executable, "-m", "jobs", "train-solver", *where, "--prompts", "/nowhere", *more]
        env = {**os.environ, **(told or {})}
        return subprocess.Popen(command, cwd=REPOSITORY, env=env, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("launching"))


def test_a_mistake_that_ranks_find_ends_the_job_with_64(training: Training) -> None:
    job = training.start("--iteration", "7", told={"SCOPE_PROCESSES": "2"})
    said = job.communicate(timeout=300)[1].strip().splitlines()
    assert job.returncode == 64
    assert said[-1].startswith("python -m jobs train-solver: rank ") and "no such stage" in said[-1]
    assert "ended with 64" in said[-1]


@pytest.mark.fault(20)
def test_ranks_that_are_stopped_have_saved_and_two_nodes_go_on_from_there(training: Training) -> None:
    job = training.start("--iteration", "1", "--processes", "2")
    end = time.monotonic() + 400
    while not (training.folder.metrics.exists() and training.folder.metrics.read_text().count("\n")):
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=400)[1]
    assert job.returncode == 143, said
    saved = len(read_rows(training.folder.metrics))
    assert list(training.folder.work.glob(f"checkpoint-{saved}/receipt.json"))
    assert read_manifest(training.folder.path) is None and saved < 3

    port = rank_environments(TrainingNode(1))[0]["MASTER_PORT"]
    both, again = {"SCOPE_NODES": "2", "SCOPE_RENDEZVOUS": f"127.0.0.1:{port}"}, ("--attempt", "2")
    nodes = [
        training.start("--iteration", "1", *again, told={**both, "JOB_COMPLETION_INDEX": index})
        for index in "01"
    ]
    lines = [node.communicate(timeout=400)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], lines
    assert (done := read_manifest(training.folder.path)) is not None and done.attempt == 2
    assert [row["step"] for row in read_rows(training.folder.metrics)] == [1, 2, 3]
    assert len(read_records(training.folder.rollouts, Rollout)) == 3 * 2 * 4


@pytest.mark.parametrize(("gpus", "offloads"), [(2, "1"), (3, "1"), (4, "0"), (8, "0")])
def test_ranks_on_gpus_are_told_how_many_share_a_copy_and_where_they_keep_it(
    gpus: int, offloads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    told = {"SCOPE_FSDP_SHARERS": str(gpus), "SCOPE_FSDP_OFFLOAD": offloads}
    for node in (TrainingNode(gpus), TrainingNode(gpus, 3, sharding="hybrid")):
        assert sharding_environment(node) == told
    assert sharding_environment(TrainingNode(gpus, 3)) == {
        "SCOPE_FSDP_SHARERS": str(3 * gpus),
        "SCOPE_FSDP_OFFLOAD": "0",
    }
    with pytest.raises(ConfigError, match=f"{gpus + 1} processes, and {gpus} GPUs here; .* start {gpus}"):
        sharding_environment(TrainingNode(gpus + 1))


def test_ranks_without_a_gpu_have_a_whole_model_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert sharding_environment(TrainingNode(4)) == {}
