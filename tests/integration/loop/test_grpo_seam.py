"""What we rely on in TRL: one test per fact that `training/grpo.py` states, and that a killed training goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from scope_selfplay.config import SolverConfig
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.store import StageFolder
from scope_selfplay.store.jsonl import read_rows
from scope_selfplay.training.grpo import GrpoJob, Scored, StepResult, newest_checkpoint, train_grpo
from scope_selfplay.training.policy import load_model
from scope_selfplay.training.rows import Row

pytestmark = pytest.mark.integration

GROUP, BATCH = 2, 2
Score = Callable[[str, int, int], Scored]


def job_of(
    policy: Path,
    folder: Path,
    *,
    start: Path | None = None,
    steps: int = 1,
    on_step: Any = None,
    **settings: Any,
) -> GrpoJob:
    (folder / ".work").mkdir(parents=True, exist_ok=True)
    given = {"learning_rate": 1e-3, "warmup_ratio": 0.0, "save_every": 1, **settings}
    return GrpoJob(
        start=start or policy,
        base=policy,
        settings=SolverConfig(
            steps=steps, batch=BATCH, group_size=GROUP, micro_batch=GROUP, max_response=64, **given
        ),
        records=[f"t{row}" for row in range(steps * BATCH)],
        folder=StageFolder(folder),
        codec=ChatCodec.load(policy),
        temperature=1.0,
        seed=3,
        on_step=on_step or (lambda step, line: None),
    )


def row(*tail: int, sampled: Sequence[int] = (60, 61, 62)) -> Row:
    """A prompt, sampled tokens, and a masked tail as tool results are."""
    ids = [*sampled, *tail]
    mask = [1] * len(sampled) + [0] * len(tail)
    return Row([40, 41, 42], ids, mask, [-5.0 * each for each in mask])


def train(job: GrpoJob, score: Score) -> list[tuple[list[str], int]]:
    """Train on made-up rows; returns what was asked for."""
    asked: list[tuple[list[str], int]] = []

    def make_roll(model: Any) -> Any:
        async def roll(records: Sequence[str], step: int) -> StepResult:
            asked.append((list(records), step))
            return StepResult(
                [score(record, place % GROUP, step) for place, record in enumerate(records)], {"rubric": 0.5}
            )

        return roll

    train_grpo(job, make_roll)
    return asked


def by_member(record: str, member: int, step: int) -> Scored:
    """Rows that differ by record, member and step; the second member is better."""
    shift = 7 * int(record[1:]) + 3 * member + step
    return Scored(row(sampled=(60 + shift, 61, 62 + member)), float(member))


def weights_of(folder: Path) -> dict[str, Any]:
    return {name: value.clone() for name, value in load_model(folder).state_dict().items()}


def same(first: Path, second: Path) -> bool:
    one, two = weights_of(first), weights_of(second)
    return all(bool((one[name] == two[name]).all()) for name in one)


def test_prompts_come_a_group_at_a_time_in_the_order_of_the_records(
    random_policy: Path, tmp_path: Path
) -> None:
    job = job_of(random_policy, tmp_path / "stage", steps=3)
    asked = train(job, by_member)
    assert asked == [
        (["t0", "t0", "t1", "t1"], 0),
        (["t2", "t2", "t3", "t3"], 1),
        (["t4", "t4", "t5", "t5"], 2),
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
        return lambda record, member, step: Scored(row(*tail, sampled=(60 + member, 61)), float(member))

    paths = []
    for name, tail in (("a", (70, 71, 72)), ("b", (90, 91, 92))):
        job = job_of(random_policy, tmp_path / name, start=None, kl_beta=0.5)
        train(job, with_tail(*tail))
        paths.append(job.folder.checkpoint)
    assert same(*paths)


def test_rollouts_without_a_reward_teach_nothing(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "none", kl_beta=0.0)
    train(job, lambda record, member, step: Scored(row(sampled=(60 + member, 61)), None))
    assert same(job.folder.checkpoint, random_policy)


def test_a_rollout_that_sampled_nothing_is_masked(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "empty", kl_beta=0.0)
    train(job, lambda record, member, step: Scored(None, 1.0) if member else Scored(row(), 0.0))
    assert same(job.folder.checkpoint, random_policy)


def test_a_group_of_equal_rewards_teaches_nothing(random_policy: Path, tmp_path: Path) -> None:
    job = job_of(random_policy, tmp_path / "flat", kl_beta=0.0)
    train(job, lambda record, member, step: Scored(row(sampled=(60 + member, 61)), 0.7))
    assert same(job.folder.checkpoint, random_policy)


def first_kl(job: GrpoJob) -> float:
    train(job, by_member)
    return float(read_rows(job.folder.metrics)[0]["kl"])


def test_the_kl_is_measured_against_the_base_wherever_training_starts(
    random_policy: Path, speaking_policy: Path, tmp_path: Path
) -> None:
    assert first_kl(job_of(random_policy, tmp_path / "same", kl_beta=0.1)) == pytest.approx(0.0, abs=1e-6)
    other = job_of(random_policy, tmp_path / "other", start=speaking_policy, kl_beta=0.1)
    assert first_kl(other) > 0.1


class Killed(Exception):
    pass


def test_a_training_that_was_killed_ends_with_the_same_weights(random_policy: Path, tmp_path: Path) -> None:
    whole = job_of(random_policy, tmp_path / "whole", steps=4)
    train(whole, by_member)

    def stop(step: int, line: dict[str, Any]) -> None:
        if step == 3:
            raise Killed

    with pytest.raises(Killed):
        train(job_of(random_policy, tmp_path / "killed", steps=4, on_step=stop), by_member)
    newest = newest_checkpoint(tmp_path / "killed" / ".work")
    assert newest is not None and newest.name == "checkpoint-2"
    resumed = job_of(random_policy, tmp_path / "killed", steps=4)
    asked = train(resumed, by_member)
    assert [step for _, step in asked] == [2, 3]
    assert same(resumed.folder.checkpoint, whole.folder.checkpoint)
    assert [each["step"] for each in read_rows(resumed.folder.metrics)] == [1, 2, 3, 4]
    pairs = zip(read_rows(resumed.folder.metrics), read_rows(whole.folder.metrics), strict=True)
    assert all(one["loss"] == pytest.approx(two["loss"]) for one, two in pairs)


@pytest.mark.parametrize("state", [None, "", '{"global_step": 3'])
def test_a_checkpoint_that_was_not_completely_written_is_passed_over(
    tmp_path: Path, state: str | None
) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text("{}")
    torn = tmp_path / "checkpoint-11"
    torn.mkdir()
    if state is not None:
        (torn / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert newest_checkpoint(tmp_path / "checkpoint-10") is None
