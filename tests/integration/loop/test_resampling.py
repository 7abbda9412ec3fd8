"""Groups that teach nothing give way to groups of other tasks, and what that costs is counted."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.rewards.measures import Greatest, Mean, Total, joined_values
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Rows, StepResult, StepSampler
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.ranks import Ranks
from scope_selfplay.training.rows import RewardedRollout
from scope_selfplay.training.solver import resampled
from tests.integration.loop.seam import GROUP, NoEngine, job_of, row, same

TASKS = [f"t{number}" for number in range(8)]


def sampler(asked: list[list[str]], varied: Sequence[str]) -> StepSampler:
    """The rewards of a group vary where its task is in `varied`."""

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        asked.append(list(records))
        groups = [
            [
                RewardedRollout([row(sampled=(60 + member, 61))], float(member if record in varied else 1))
                for member in range(GROUP)
            ]
            for record in records
        ]
        sampled([rollout.rows for group in groups for rollout in group])
        measures = {
            "judge_calls": Total(len(records)),
            "rollout_seconds": Greatest(2.0),
            "finished": Mean.of(record in varied for record in records),
        }
        return StepResult(groups, measures)

    return sample_step


def step_of(job: GrpoJob, rounds: int, varied: Sequence[str]) -> tuple[list[list[str]], StepResult]:
    asked: list[list[str]] = []
    told: list[Rows] = []
    sample = resampled(sampler(asked, varied), job, TASKS, rounds)
    found = asyncio.run(sample(job.records_of(0), 0, told.append))
    # An engine is needed until no group is sampled again.
    assert len(told) == (not rounds)
    return asked, found


def test_without_rounds_a_step_is_what_was_sampled(random_policy: Path, tmp_path: Path) -> None:
    asked, found = step_of(job_of(random_policy, tmp_path), 0, [])
    assert asked == [["t0", "t1"]] and "resampled" not in found.metrics


def test_a_flat_group_gives_way_to_one_of_another_task(random_policy: Path, tmp_path: Path) -> None:
    asked, found = step_of(job_of(random_policy, tmp_path), 3, ["t0", *TASKS[2:]])
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
    for together, own in zip(alone, shared, strict=True):
        assert own == together[number : number + 1]


def test_a_training_learns_from_what_came_in_place_of_flat_groups(
    random_policy: Path, tmp_path: Path
) -> None:
    folders = []
    for rounds in (0, 2):
        job = job_of(random_policy, tmp_path / str(rounds), kl_beta=0.0, steps=2)
        with job.ranks:
            TrainingLoop(
                job, load(job), NoEngine(), resampled(sampler([], TASKS[4:]), job, TASKS, rounds)
            ).run()
        folders.append(job.folder)
    flat, found = (read_rows(folder.metrics) for folder in folders)
    assert same(folders[0].checkpoint, random_policy) and not same(folders[1].checkpoint, random_policy)
    assert [line["zero_variance"] for line in flat] == [1.0, 1.0]
    assert all(line["zero_variance"] < 1.0 and line["resampled"] > 0 for line in found)
