"""Rollouts of the next step are made beside an update, by one policy that is one step old."""

import threading
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import OutsideError
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import Killed, NoEngine, by_member, job_of, loop_of, same, train_on


class Watching(NoEngine):
    """Notes which weights each step is sampled from."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def take(self, model: Any, identity: str) -> None:
        super().take(model, identity)
        self.seen.append(float(model.network.get_input_embeddings().weight.detach().double().sum()))


def watched(job: GrpoJob) -> Watching:
    engine = Watching()
    with job.ranks:
        loop_of(job, engine=engine).run()
    return engine


def test_a_step_is_sampled_by_the_weights_before_the_update_beside_it(
    random_policy: Path, tmp_path: Path
) -> None:
    found = []
    for overlap in (0, 1):
        job = job_of(random_policy, tmp_path / str(overlap), steps=4, overlap=overlap, sampling_cap=0)
        found.append(watched(job))
        assert [name.split("@")[1] for name in found[-1].taken] == ["0", "1", "2", "3"]
    now, ahead = (engine.seen for engine in found)
    assert len(set(now)) == 4
    # The rows are made up, so both trainings go through the same weights.
    assert ahead == [now[0], *now[:3]]
    assert same(tmp_path / "0" / "checkpoint", tmp_path / "1" / "checkpoint")


def test_the_update_does_not_wait_for_the_rollouts_beside_it(random_policy: Path, tmp_path: Path) -> None:
    updated = threading.Event()

    def after_an_update(record: str, member: int, step: int) -> RewardedRollout:
        assert not step or updated.wait(60)
        return by_member(record, member, step)

    job = job_of(random_policy, tmp_path, steps=2, overlap=1, on_step=lambda *_: updated.set())
    train_on(job, after_an_update)
    assert [line["step"] for line in read_rows(job.folder.metrics)] == [1, 2]


def test_what_fails_ahead_ends_the_training_when_its_step_comes(random_policy: Path, tmp_path: Path) -> None:
    def fails(record: str, member: int, step: int) -> Any:
        if step == 2:
            raise OutsideError("the judge is away")
        return by_member(record, member, step)

    job = job_of(random_policy, tmp_path, steps=4, overlap=1)
    with pytest.raises(OutsideError, match="the judge is away"):
        train_on(job, fails)
    assert [line["step"] for line in read_rows(job.folder.metrics)] == [1, 2]


def test_a_killed_training_goes_on_with_every_step_once(random_policy: Path, tmp_path: Path) -> None:
    def stop(step: int, line: dict[str, Any], accounts: Any) -> None:
        if step == 3:
            raise Killed

    with pytest.raises(Killed):
        train_on(job_of(random_policy, tmp_path, steps=4, overlap=1, on_step=stop), by_member)
    resumed = job_of(random_policy, tmp_path, steps=4, overlap=1)
    asked = train_on(resumed, by_member)
    assert [step for _, step in asked] == [2, 3]
    assert [line["step"] for line in read_rows(resumed.folder.metrics)] == [1, 2, 3, 4]
