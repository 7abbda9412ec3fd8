"""What a step teaches, what it leaves out, and that a killed training goes on."""

import random
import re
import time
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from trl.trainer.utils import nanstd

from scope_selfplay.rewards.equations import summed_objectives
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.loss import AdvantageScale, advantages
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import Score, by_member, first_kl, job_of, row, same, train_on


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


PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")


def test_thirty_lines_train_a_policy_on_a_reward_of_ones_own(random_policy: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(list(filter(None, example.splitlines()))) <= 30
    (tmp_path / "policy").symlink_to(random_policy)
    with chdir(tmp_path):
        exec(compile(example, "docs/training.md", "exec"), {})
    lines = read_rows(tmp_path / "own" / "metrics.jsonl")
    # The policy says more and more of what is paid for, by several standard errors.
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["reward"] > lines[0]["reward"] + 1
    assert not same(tmp_path / "own" / "checkpoint", random_policy)
    assert [name for name in lines[0] if name != "step" and f"`{name}`" not in PAGE] == []


GROUPS, SIZE = 3, 4


def test_advantages_are_those_of_trl() -> None:
    rng = random.Random(4)
    values = torch.tensor([[rng.random() * width for width in (1, 10, 0.1)] for _ in range(GROUPS * SIZE)])
    weights = torch.tensor([3.0, 2.0, 1.0])
    # TRL 1.16, GRPOTrainer, multi_objective_aggregation="normalize_then_sum".
    grouped = values.view(GROUPS, SIZE, 3)
    own = (grouped - grouped.nanmean(dim=1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    sums = (own.view(-1, 3) * weights / weights.sum()).nansum(dim=1)
    expected = (sums - sums.nanmean()) / (nanstd(sums) + 1e-4)
    rewards = [summed_objectives(group.T.tolist(), weights.tolist()) for group in grouped]
    found = torch.tensor(advantages(rewards, AdvantageScale.STEP)).flatten()
    # TRL's deviations are those of a sample, ours of the population.
    factor = ((GROUPS * SIZE - 1) / (GROUPS * SIZE)) ** 0.5
    assert torch.allclose(factor * found, expected, atol=1e-3)
