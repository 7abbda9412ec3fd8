"""Two processes train as one does: whole groups each, the same rewards, the same weights, the same new adapter."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.launch import TrainingNode, rank_environments
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import ranks
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import Score, by_member, furthest, job_of, row, train_on, with_model
from tests.integration.loop.test_run import forked


def uneven(record: str, member: int, step: int) -> RewardedRollout:
    """The first group of a step has long rollouts of two rows; of the second, one step has none that counts."""
    if int(record[1:]) % 2:
        return RewardedRollout([row(sampled=(60, 61 + member))], None if step else float(member))
    long = [60 + member + number for number in range(20)]
    return RewardedRollout([row(sampled=long), row(sampled=long[3:9])], float(member))


SCORES: dict[str, Score] = {"even": by_member, "uneven": uneven}


def job_with(policy: Path, folder: Path, rows: str) -> GrpoJob:
    job = job_of(policy, folder, steps=2, kl_beta=0.1, micro_tokens=40)
    return with_model(job, ModelConfig(lora_rank=4)) if rows == "uneven" else job


def work_along(policy: Path, folder: Path, told: dict[str, str], rows: str) -> None:
    import torch

    os.environ.update(told)
    job = replace(job_with(policy, folder, rows), ranks=ranks())
    torch.manual_seed(job.ranks.number)
    asked = train_on(job, SCORES[rows])
    (folder / f"asked-{job.ranks.number}.json").write_text(json.dumps([records for records, _ in asked]))


@pytest.mark.parametrize("rows", SCORES)
def test_two_processes_train_as_one_does(random_policy: Path, tmp_path: Path, rows: str) -> None:
    alone = job_with(random_policy, tmp_path / "alone", rows)
    train_on(alone, SCORES[rows])
    folder = tmp_path / "two"
    folder.mkdir()
    environments = rank_environments(TrainingNode(2))
    children = [forked(work_along, random_policy, folder, told, rows) for told in environments]
    for child in children:
        child.join(600)
        assert child.exitcode == 0
    shares = [json.loads((folder / f"asked-{index}.json").read_text()) for index in range(2)]
    assert shares == [[["t0"], ["t2"]], [["t1"], ["t3"]]]
    ours, theirs = read_rows(folder / "metrics.jsonl"), read_rows(alone.folder.metrics)
    for one, two in zip(ours, theirs, strict=True):
        for name in ("reward", "reward_std", "loss", "grad_norm", "kl", "rubric", "rows", "judge_calls"):
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-6), name
    assert (
        furthest(folder / "checkpoint", alone.folder.checkpoint)
        < 5e-5
        < furthest(folder / "checkpoint", random_policy)
    )
