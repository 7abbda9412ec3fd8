"""Several updates per step: each is an optimizer step over its own groups, and importance ratios leave 1."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from datasets import Dataset
from transformers import SchedulerType
from trl import GRPOTrainer

from scope_selfplay.config import load_config
from scope_selfplay.errors import ConfigError
from scope_selfplay.store.files import read_rows
from scope_selfplay.training import updating
from scope_selfplay.training.batches import trl_columns
from scope_selfplay.training.generation import trl_config
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.policy import load_model
from scope_selfplay.training.ranks import check_shares
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import BATCH, GROUP, by_member, furthest, job_of, same, train

pytestmark = pytest.mark.integration

CLOSE = 5e-5


def lines_of(job: GrpoJob) -> list[dict[str, Any]]:
    train(job, by_member)
    return read_rows(job.folder.metrics)


def native(job: GrpoJob, epochs: int) -> None:
    """The same rollouts learnt from as often by TRL's own trainer, whose steps are optimizer steps."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        scored = [by_member(record, place % GROUP, 0) for place, record in enumerate(prompts)]
        return trl_columns(scored, job.codec.tokenizer.eos_token_id)

    settings = trl_config(job)
    settings.num_iterations, settings.max_steps = epochs, epochs
    # Ours is set by the trainer.
    settings.lr_scheduler_type = SchedulerType.CONSTANT
    trainer = GRPOTrainer(
        model=load_model(job.start.weights),
        reward_funcs=lambda completions, given_reward, **_: given_reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": list(job.records)}),
        processing_class=job.codec.tokenizer,
        rollout_func=rollout,
    )
    trainer.train()
    trainer.save_model(str(job.folder.checkpoint))


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo"])
def test_learning_several_times_from_a_step_is_what_trl_calls_iterations(
    random_policy: Path, tmp_path: Path, loss: str
) -> None:
    options = {"kl_beta": 0.0, "loss": loss, "learning_rate": 3e-3}
    ours = job_of(random_policy, tmp_path / "ours", epochs=3, **options)
    (line,) = lines_of(ours)
    theirs = job_of(random_policy, tmp_path / "theirs", **options)
    native(theirs, 3)
    assert furthest(ours.folder.checkpoint, theirs.folder.checkpoint) < CLOSE
    once = job_of(random_policy, tmp_path / "once", **options)
    train(once, by_member)
    assert furthest(ours.folder.checkpoint, once.folder.checkpoint) > 10 * CLOSE
    assert line["step"] == 1


def test_updates_learn_from_their_own_groups_one_after_the_other(random_policy: Path, tmp_path: Path) -> None:
    """The first update is one of the first group alone; the second begins where that one ended."""
    job = job_of(random_policy, tmp_path / "two", kl_beta=0.0, updates=2)
    lines = lines_of(job)
    assert [line["step"] for line in lines] == [1]
    together = job_of(random_policy, tmp_path / "one", kl_beta=0.0)
    train(together, by_member)
    assert not same(job.folder.checkpoint, together.folder.checkpoint)
    # One step of Adam moves a weight by the learning rate at most, two by twice that.
    assert furthest(together.folder.checkpoint, random_policy) <= 1.01e-3
    assert 1.2e-3 < furthest(job.folder.checkpoint, random_policy) <= 2.02e-3


@pytest.mark.parametrize(("loss", "high"), [("grpo", None), ("cispo", 0.001)])
def test_clips_bind_where_the_policy_has_left_the_one_that_sampled(
    random_policy: Path, tmp_path: Path, loss: str, high: float | None
) -> None:
    options = {"kl_beta": 0.0, "loss": loss, "clip_high": high, "learning_rate": 2e-2}
    (once,) = lines_of(job_of(random_policy, tmp_path / "once", **options))
    assert once["clipped"] == 0.0
    (often,) = lines_of(job_of(random_policy, tmp_path / "often", epochs=4, **options))
    assert 0.0 < often["clipped"] < 1.0


def test_a_killed_training_of_several_updates_goes_on_from_a_whole_step(
    random_policy: Path, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def stop(step: int, line: dict[str, Any]) -> None:
        if step == 2:
            raise Killed

    options: dict[str, Any] = {"steps": 3, "updates": 2, "epochs": 2}
    whole = job_of(random_policy, tmp_path / "whole", **options)
    train(whole, by_member)
    with pytest.raises(Killed):
        train(job_of(random_policy, tmp_path / "killed", on_step=stop, **options), by_member)
    resumed = job_of(random_policy, tmp_path / "killed", **options)
    asked = train(resumed, by_member)
    assert [step for _, step in asked] == [1, 2]
    assert same(resumed.folder.checkpoint, whole.folder.checkpoint)


def test_updates_are_of_as_many_groups_each() -> None:
    with pytest.raises(ConfigError, match=r"updates \(3\) must divide the groups of a step, batch \(256\)"):
        load_config(None, ["solver.updates=3"])
    settings = load_config(None, ["solver.updates=128"]).solver
    assert check_shares(settings, 2) == 1024
    with pytest.raises(
        ConfigError, match=r"updates \(128\) must divide the 64 groups that each of 4 processes"
    ):
        check_shares(settings, 4)


def half_flat(record: str, member: int, step: int) -> RewardedRollout:
    """The groups of even records teach nothing."""
    rollout = by_member(record, member, step)
    return rollout if int(record[1:]) % 2 else replace(rollout, reward=1.0)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo"])
def test_without_a_kl_groups_that_teach_nothing_count_and_are_not_computed(
    random_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    rows: list[int] = []
    score = updating.score_tokens

    def counted(model: Any, input_ids: Any, *arguments: Any, **options: Any) -> Any:
        rows.append(len(input_ids))
        return score(model, input_ids, *arguments, **options)

    monkeypatch.setattr(updating, "score_tokens", counted)
    jobs = {
        beta: job_of(random_policy, tmp_path / str(beta), loss=loss, kl_beta=beta) for beta in (0.0, 1e-9)
    }
    computed = {}
    for beta, job in jobs.items():
        rows.clear()
        train(job, half_flat)
        computed[beta] = sum(rows)
    # With a KL every row is also read by the reference.
    assert computed == {0.0: GROUP, 1e-9: 2 * BATCH * GROUP}
    assert furthest(*(job.folder.checkpoint for job in jobs.values())) < CLOSE
