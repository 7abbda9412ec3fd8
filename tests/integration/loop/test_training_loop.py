"""What a step teaches, what it leaves out, and that a killed training goes on."""

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from scope_selfplay.store.files import read_rows
from scope_selfplay.training.checkpoint import Checkpoints
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import Ranks
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import Score, by_member, job_of, row, same, train_on

pytestmark = pytest.mark.integration


def test_prompts_come_a_group_at_a_time_in_the_order_of_the_records(
    random_policy: Path, tmp_path: Path
) -> None:
    job = job_of(random_policy, tmp_path / "stage", steps=3)
    asked = train_on(job, by_member)
    assert asked == [
        (["t0", "t1"], 0),
        (["t2", "t3"], 1),
        (["t4", "t5"], 2),
    ]
    rows = read_rows(job.folder.metrics)
    assert [each["step"] for each in rows] == [1, 2, 3]
    assert all(each["reward"] == 0.5 and each["rubric"] == 0.5 for each in rows)
    assert not same(job.folder.checkpoint, random_policy)
    names = {each.name for each in job.folder.checkpoint.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    } <= names and "training_args.bin" not in names


def test_the_only_step_of_a_warm_up_learns(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "stage", steps=1, warmup_ratio=0.6)
    train_on(job, by_member)
    assert [line["learning_rate"] for line in read_rows(job.folder.metrics)] == [1e-3]
    assert not same(job.folder.checkpoint, random_policy)


def test_masked_tokens_change_neither_loss_nor_kl(random_policy: Path, tmp_path: Path) -> None:
    def with_tail(*tail: int) -> Score:
        return lambda record, member, step: RewardedRollout(
            [row(*tail, sampled=(60 + member, 61))], float(member)
        )

    paths = []
    for name, tail in (("a", (70, 71, 72)), ("b", (90, 91, 92))):
        job = job_of(random_policy, tmp_path / name, start=None, kl_beta=0.5)
        train_on(job, with_tail(*tail))
        paths.append(job.folder.checkpoint)
    assert same(*paths)


def test_rollouts_without_a_reward_teach_nothing(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "none", kl_beta=0.0)
    train_on(job, lambda record, member, step: RewardedRollout([row(sampled=(60 + member, 61))], None))
    assert same(job.folder.checkpoint, random_policy)


def test_a_rollout_that_sampled_nothing_is_masked(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "empty", kl_beta=0.0)
    train_on(
        job,
        lambda record, member, step: RewardedRollout([], 1.0) if member else RewardedRollout([row()], 0.0),
    )
    assert same(job.folder.checkpoint, random_policy)


def test_a_group_of_equal_rewards_teaches_nothing(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "flat", kl_beta=0.0)
    train_on(job, lambda record, member, step: RewardedRollout([row(sampled=(60 + member, 61))], 0.7))
    assert same(job.folder.checkpoint, random_policy)


def first_kl(job: GrpoJob) -> float:
    train_on(job, by_member)
    return float(read_rows(job.folder.metrics)[0]["kl"])


def test_the_kl_is_measured_against_the_base_wherever_training_starts(
    random_policy: Path, speaking_policy: Path, tmp_path: Path
) -> None:
    assert first_kl(job_of(random_policy, tmp_path / "same", kl_beta=0.1)) == pytest.approx(0.0, abs=1e-6)
    other = job_of(random_policy, tmp_path / "other", start=speaking_policy, kl_beta=0.1)
    assert first_kl(other) > 0.1


def test_the_update_is_told_apart_from_what_comes_before_it(random_policy: Path, tmp_path: Path) -> None:
    def slowly(record: str, member: int, step: int) -> RewardedRollout:
        time.sleep(0.1)
        return by_member(record, member, step)

    job = job_of(random_policy, tmp_path / "timed", steps=2)
    train_on(job, slowly)
    for line in read_rows(job.folder.metrics):
        assert line["update_seconds"] > 0 and line["step_seconds"] - line["update_seconds"] >= 0.4


class Killed(Exception):
    pass


def test_a_training_that_was_killed_ends_with_the_same_weights(random_policy: Path, tmp_path: Path) -> None:
    whole = job_of(random_policy, tmp_path / "whole", steps=4)
    train_on(whole, by_member)

    def stop(step: int, line: dict[str, Any], accounts: Any) -> None:
        if step == 3:
            raise Killed

    with pytest.raises(Killed):
        train_on(job_of(random_policy, tmp_path / "killed", steps=4, on_step=stop), by_member)
    newest = Checkpoints(tmp_path / "killed" / ".work", Ranks()).newest(print)
    assert newest is not None and newest.name == "checkpoint-2"
    resumed = job_of(random_policy, tmp_path / "killed", steps=4)
    asked = train_on(resumed, by_member)
    assert [step for _, step in asked] == [2, 3]
    assert same(resumed.folder.checkpoint, whole.folder.checkpoint)
    assert [each["step"] for each in read_rows(resumed.folder.metrics)] == [1, 2, 3, 4]
    pairs = zip(read_rows(resumed.folder.metrics), read_rows(whole.folder.metrics), strict=True)
    assert all(one["loss"] == pytest.approx(two["loss"]) for one, two in pairs)
