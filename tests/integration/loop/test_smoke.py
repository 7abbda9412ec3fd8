"""All of it in a minute: a tiny run through every stage, killed and gone on with, and training in two processes."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults.counting import FaultCounts, points
from jobs.launch import TrainingNode, rank_environments
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Grade
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.driver.local import run_here
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import kept_solver
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import ranks
from tests.integration.loop.seam import furthest, job_of, train_on, uneven
from tests.integration.loop.test_run import forked, in_child, records, whole_run

pytestmark = pytest.mark.smoke


@pytest.mark.fault(1)
def test_a_run_that_was_killed_at_a_random_write_ends_as_the_run_that_nothing_disturbed(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    """Training of both roles, tasks, comparison and promotion; the page of reliability tries twenty writes."""
    undisturbed = records(finished.path.parent)
    # How many there are depends a little on which candidates are under way together.
    writes = int((finished.path.parent / "writes").read_text()) * 9 // 10
    for number in range(points(1, 20)):
        root, write = tmp_path / str(number), Random(number).randint(1, writes)
        assert in_child(whole_run, speaking_policy, root, write) == -signal.SIGKILL, f"write {write}"
        assert in_child(whole_run, speaking_policy, root) == 0, f"after a kill before write {write}"
        counts.compare(undisturbed, records(root))
        assert kept_solver(RunFolder(root / "tiny")) == kept_solver(finished) is not None
    counts.check()


def test_the_policy_that_ships_answers_what_it_was_taught(tmp_path: Path) -> None:
    """Of forty held-out tasks of one to five links those of one and two."""
    run = open_run(load_config(DEFAULT_CONFIG, ["compare.tasks=40", "stop_after=0"]), tmp_path, Progress())
    run_here(run)
    grades = read_records(run.folder.stage(0, Stage.COMPARE).grades, Grade)
    scores = [grade.score for grade in grades if grade.score is not None]
    assert len(scores) == 40 and 0.3 < sum(scores) / 40 < 0.5


def small_job(policy: Path, folder: Path) -> GrpoJob:
    return job_of(policy, folder, steps=2, kl_beta=0.1, micro_tokens=40, model=ModelConfig(lora_rank=4))


def work_along(policy: Path, folder: Path, told: Mapping[str, str]) -> None:
    import torch

    os.environ.update(told)
    job = replace(small_job(policy, folder), ranks=ranks())
    torch.manual_seed(job.ranks.number)
    asked = [records for records, _ in train_on(job, uneven)]
    (folder / f"asked-{job.ranks.number}.json").write_text(json.dumps(asked))


def test_two_processes_train_as_one_does(random_policy: Path, tmp_path: Path) -> None:
    """Whole groups each, of unequal rows: the same rewards, the same weights, the same new adapter."""
    alone, folder = small_job(random_policy, tmp_path / "alone"), tmp_path / "two"
    train_on(alone, uneven)
    folder.mkdir()
    environments = rank_environments(TrainingNode(2))
    children = [forked(work_along, random_policy, folder, told) for told in environments]
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    shares = [json.loads((folder / f"asked-{index}.json").read_text()) for index in range(2)]
    assert shares == [[["t0"], ["t2"]], [["t1"], ["t3"]]]
    ours, theirs = read_rows(folder / "metrics.jsonl"), read_rows(alone.folder.metrics)
    for one, two in zip(ours, theirs, strict=True):
        for name in ("reward", "reward_std", "loss", "grad_norm", "kl", "rubric", "rows", "judge_calls"):
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-6), name
    found = folder / "checkpoint"
    assert furthest(found, alone.folder.checkpoint) < 5e-5 < furthest(found, random_policy)
