"""What a step teaches, what it leaves out, in how many updates, beside which rollouts, and what is exported of it."""

import asyncio
import json
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.utils import nanstd

from scope_selfplay.base.errors import CheckpointError, OutsideError, TrainingError
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.rewards.equations import summed_objectives
from scope_selfplay.rewards.measures import Greatest, Mean, Total, joined_values
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Rows, StepResult
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import load
from scope_selfplay.training.loss import AdvantageScale, advantages
from scope_selfplay.training.passes import RewardedRollout
from scope_selfplay.training.ranks import Ranks
from scope_selfplay.training.samplers import resampled
from tests.integration.loop.seam import (
    GROUP,
    NoEngine,
    by_member,
    first_kl,
    furthest,
    job_of,
    loop_of,
    row,
    same,
    train_on,
    trained_metrics,
)


def test_masked_tokens_change_neither_loss_nor_kl(random_policy: Path, tmp_path: Path) -> None:
    paths = []
    for name, tail in (("a", (70, 71, 72)), ("b", (90, 91, 92))):
        job = job_of(random_policy, tmp_path / name, kl_beta=0.5)
        rows = [row(*tail, sampled=(60 + member, 61)) for member in range(2)]
        train_on(job, lambda record, member, step, rows=rows: RewardedRollout([rows[member]], float(member)))
        paths.append(job.folder.checkpoint)
    assert same(*paths) and not same(paths[0], random_policy)


@pytest.mark.parametrize("what", ["equal rewards", "nothing sampled", "no reward, and a KL"])
def test_a_group_of_equal_rewards_teaches_nothing(
    random_policy: Path, speaking_policy: Path, tmp_path: Path, what: str
) -> None:
    def score(record: str, member: int, step: int) -> RewardedRollout:
        if what == "nothing sampled":
            return RewardedRollout([] if member else [row()], float(member))
        return RewardedRollout([row(sampled=(60 + member, 61))], 0.7 if what == "equal rewards" else None)

    start, beta = (speaking_policy, 0.5) if "KL" in what else (random_policy, 0.0)
    job = job_of(random_policy, tmp_path, start=start, kl_beta=beta)
    train_on(job, score)
    assert same(job.folder.checkpoint, start)


def test_the_kl_is_measured_against_the_base_wherever_training_starts(
    random_policy: Path, speaking_policy: Path, tmp_path: Path
) -> None:
    assert first_kl(job_of(random_policy, tmp_path / "same", kl_beta=0.1)) == pytest.approx(0.0, abs=1e-6)
    other = job_of(random_policy, tmp_path / "other", start=speaking_policy, kl_beta=0.1)
    assert first_kl(other) > 0.1
    # A reference that is not M0 ends a training from M0 before its first update.
    job = job_of(random_policy, tmp_path / "wrong", kl_beta=0.1)
    with job.ranks, pytest.raises(TrainingError, match="the reference is not what"):
        loop = loop_of(job)
        refer = loop.model.refer
        loop.model.refer = lambda batch: refer(batch) - 1.0  # type: ignore[method-assign]
        loop.run()
    assert read_rows(job.folder.metrics) == []


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


def test_updates_learn_from_their_own_groups_one_after_the_other(random_policy: Path, tmp_path: Path) -> None:
    """The first update is one of the first group alone; the second begins where that one ended."""
    job = job_of(random_policy, tmp_path / "two", kl_beta=0.0, updates=2)
    assert [line["step"] for line in trained_metrics(job)] == [1]
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
    (once,), (often,) = trained_metrics(one), trained_metrics(four)
    assert once["clipped"] == 0.0 < often["clipped"] < 1.0
    moved = [furthest(job.folder.checkpoint, random_policy) for job in (one, four)]
    assert moved[0] <= 2.02e-2 and 2.5e-2 < moved[1] <= 8.08e-2


class Watching(NoEngine):
    """Notes which weights each step is sampled from."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def take(self, model: Any, identity: str) -> None:
        super().take(model, identity)
        self.seen.append(float(model.network.get_input_embeddings().weight.detach().double().sum()))


def test_a_step_is_sampled_by_the_weights_before_the_update_beside_it(
    random_policy: Path, tmp_path: Path
) -> None:
    now, ahead = Watching(), Watching()
    for overlap, engine in enumerate((now, ahead)):
        job = job_of(random_policy, tmp_path / str(overlap), steps=4, overlap=overlap, sampling_cap=0)
        with job.ranks:
            loop_of(job, engine=engine).run()
        assert [name.split("@")[1] for name in engine.taken] == ["0", "1", "2", "3"]
    assert len(set(now.seen)) == 4
    # The rows are made up, so both trainings go through the same weights.
    assert ahead.seen == [now.seen[0], *now.seen[:3]]
    assert same(tmp_path / "0" / "checkpoint", tmp_path / "1" / "checkpoint")


def test_an_update_waits_for_no_rollouts_beside_it_and_what_fails_there_ends_the_training_in_its_turn(
    random_policy: Path, tmp_path: Path
) -> None:
    updated = threading.Event()

    def fails_at_last(record: str, member: int, step: int) -> RewardedRollout:
        assert not step or updated.wait(60)
        if step == 2:
            raise OutsideError("the judge is away")
        return by_member(record, member, step)

    job = job_of(random_policy, tmp_path, steps=4, overlap=1, on_step=lambda *_: updated.set())
    with pytest.raises(OutsideError, match="the judge is away"):
        train_on(job, fails_at_last)
    assert [line["step"] for line in read_rows(job.folder.metrics)] == [1, 2]


TASKS = [f"t{number}" for number in range(8)]


def step_of(job: GrpoJob, rounds: int, varied: Sequence[str]) -> tuple[list[list[str]], StepResult]:
    """What was asked for and came out where the rewards of a group vary if its task is in `varied`."""
    asked: list[list[str]] = []
    told: list[Rows] = []

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        asked.append(list(records))
        rewards = [
            [float(member if record in varied else 1) for member in range(GROUP)] for record in records
        ]
        sampled([])
        measures = {
            "judge_calls": Total(len(records)),
            "rollout_seconds": Greatest(2.0),
            "finished": Mean.of(record in varied for record in records),
        }
        return StepResult([[RewardedRollout([row()], each) for each in group] for group in rewards], measures)

    found = asyncio.run(resampled(sample_step, job, TASKS, rounds)(job.records_of(0), 0, told.append))
    # An engine is needed until no group is sampled again.
    assert len(told) == (not rounds)
    return asked, found


def test_a_flat_group_gives_way_to_one_of_another_task(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path)
    asked, found = step_of(job, 0, [])
    assert asked == [["t0", "t1"]] and "resampled" not in found.metrics
    asked, found = step_of(job, 3, ["t0", *TASKS[2:]])
    assert len(asked) == 2 and len(asked[1]) == 1 and asked[1][0] in TASKS[2:]
    assert [[rollout.reward for rollout in group] for group in found.groups] == [[0.0, 1.0], [0.0, 1.0]]
    assert joined_values([found.metrics]) == {
        "judge_calls": 3.0,
        "rollout_seconds": 4.0,
        "finished": pytest.approx(2 / 3),
        "resampled": 1.0,
    }


def test_rounds_and_tasks_bound_what_a_step_costs(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path)
    for rounds, groups in ((1, 2), (2, 4), (9, 6)):
        asked, found = step_of(job, rounds, [])
        again = [task for records in asked[1:] for task in records]
        # Six tasks are left for a step of two, and none is taken twice.
        assert len(again) == len(set(again)) == groups and set(again) <= set(TASKS[2:])
        assert joined_values([found.metrics])["resampled"] == groups


@pytest.mark.parametrize("number", [0, 1])
def test_a_group_gets_the_same_task_in_however_many_processes(
    random_policy: Path, tmp_path: Path, number: int
) -> None:
    class Met(Ranks):
        """The other process has a flat group in every round."""

        async def gather(self, what: str, own: Any) -> list[Any]:
            return [own, True]

    job = job_of(random_policy, tmp_path)
    alone, _ = step_of(job, 2, [])
    shared, _ = step_of(replace(job, ranks=Met(number, 2)), 2, [])
    assert shared == [together[number : number + 1] for together in alone]


def dtypes_of(folder: Path) -> set[str]:
    from safetensors import safe_open

    found = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(str(file), "pt") as opened:
            found |= {str(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("rank", [0, 4])
def test_an_export_has_the_data_type_of_m0(
    random_policy: Path, half_policy: Path, tmp_path: Path, rank: int
) -> None:
    model = ModelConfig(lora_rank=rank)
    for base, dtype, name in ((random_policy, "F32", "float32"), (half_policy, "BF16", "bfloat16")):
        job = job_of(base, tmp_path / name, model=model)
        train_on(job, by_member)
        assert dtypes_of(job.folder.checkpoint) == {dtype}
        assert json.loads((job.folder.checkpoint / "config.json").read_text())["dtype"] == name
        assert not same(job.folder.checkpoint, base)
    whole = model.model_copy(update={"export_dtype": "float32"})
    exact = job_of(half_policy, tmp_path / "exact", model=whole)
    train_on(exact, by_member)
    assert dtypes_of(exact.folder.checkpoint) == {"F32"}
    # Servers go by the config, and serve it as they serve M0.
    assert json.loads((exact.folder.checkpoint / "config.json").read_text())["dtype"] == "bfloat16"


def adapted(policy: Path, folder: Path, start: Path | None = None, steps: int = 2, rank: int = 4) -> GrpoJob:
    options = {"kl_beta": 0.1, "learning_rate": 5e-2, "model": ModelConfig(lora_rank=rank)}
    return job_of(policy, folder, start=start, steps=steps, **options)


def test_the_kl_of_an_adapter_is_to_m0_in_every_iteration(random_policy: Path, tmp_path: Path) -> None:
    one = adapted(random_policy, tmp_path / "one")
    assert first_kl(one) == pytest.approx(0.0, abs=1e-6)
    checkpoint = one.folder.checkpoint
    assert not same(checkpoint, random_policy)
    assert {path.name for path in (checkpoint / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    # What the KL of the same start is when all weights are trained and the reference is loaded beside them.
    full = first_kl(job_of(random_policy, tmp_path / "full", start=checkpoint, kl_beta=0.1))
    assert full > 1e-3
    two = adapted(random_policy, tmp_path / "two", start=checkpoint)
    assert first_kl(two) == pytest.approx(full, rel=1e-2)
    assert furthest(two.folder.checkpoint, checkpoint) > 1e-3
    # A start that was trained in full has no adapter: M0 is loaded beside it, and no adapter over it is kept.
    plain = tmp_path / "plain"
    shutil.copytree(checkpoint, plain, ignore=shutil.ignore_patterns("adapter"))
    three = adapted(random_policy, tmp_path / "three", start=plain)
    assert first_kl(three) == pytest.approx(full, rel=1e-2)
    assert not (three.folder.checkpoint / "adapter").exists()
    with pytest.raises(CheckpointError, match=r"holds an adapter of rank 4.*model.lora_rank asks for rank 8"):
        load(adapted(random_policy, tmp_path / "four", start=checkpoint, rank=8))
