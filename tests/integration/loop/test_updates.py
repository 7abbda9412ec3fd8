"""Several updates per step: each is an optimizer step over its own groups, and importance ratios leave 1."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import BATCH, GROUP, by_member, furthest, job_of, loop_of, same, train_on

CLOSE = 5e-5


def lines_of(job: GrpoJob) -> list[dict[str, Any]]:
    train_on(job, by_member)
    return read_rows(job.folder.metrics)


def test_updates_learn_from_their_own_groups_one_after_the_other(random_policy: Path, tmp_path: Path) -> None:
    """The first update is one of the first group alone; the second begins where that one ended."""
    job = job_of(random_policy, tmp_path / "two", kl_beta=0.0, updates=2)
    lines = lines_of(job)
    assert [line["step"] for line in lines] == [1]
    together = job_of(random_policy, tmp_path / "one", kl_beta=0.0)
    train_on(together, by_member)
    assert not same(job.folder.checkpoint, together.folder.checkpoint)
    # One step of Adam moves a weight by the learning rate at most, two by twice that.
    assert furthest(together.folder.checkpoint, random_policy) <= 1.01e-3
    assert 1.2e-3 < furthest(job.folder.checkpoint, random_policy) <= 2.02e-3


@pytest.mark.parametrize("loss", ["grpo", "gspo"])
def test_clips_bind_where_the_policy_has_left_the_one_that_sampled(
    random_policy: Path, tmp_path: Path, loss: str
) -> None:
    options = {"kl_beta": 0.0, "loss": loss, "learning_rate": 2e-2}
    one, four = (job_of(random_policy, tmp_path / str(number), epochs=number, **options) for number in (1, 4))
    (once,), (often,) = lines_of(one), lines_of(four)
    assert once["clipped"] == 0.0 < often["clipped"] < 1.0
    # One step of Adam moves a weight by the learning rate at most.
    moved = [furthest(job.folder.checkpoint, random_policy) for job in (one, four)]
    assert moved[0] <= 2.02e-2 and 2.5e-2 < moved[1] <= 8.08e-2


def half_flat(record: str, member: int, step: int) -> RewardedRollout:
    """The groups of even records teach nothing."""
    rollout = by_member(record, member, step)
    return rollout if int(record[1:]) % 2 else replace(rollout, reward=1.0)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo"])
def test_without_a_kl_groups_that_teach_nothing_count_and_are_not_computed(
    random_policy: Path, tmp_path: Path, loss: str
) -> None:
    rows: dict[float, list[int]] = {0.0: [], 1e-9: []}
    checkpoints = []
    for beta, computed in rows.items():
        job = job_of(random_policy, tmp_path / str(beta), loss=loss, kl_beta=beta)
        with job.ranks:
            loop = loop_of(job, half_flat)
            loop.model.model.register_forward_pre_hook(
                lambda module, args, given, computed=computed: computed.append(len(given["input_ids"])),
                with_kwargs=True,
            )
            loop.run()
        checkpoints.append(job.folder.checkpoint)
    # With a KL every row is learnt from.
    assert {beta: sum(computed) for beta, computed in rows.items()} == {0.0: GROUP, 1e-9: BATCH * GROUP}
    assert furthest(*checkpoints) < CLOSE
