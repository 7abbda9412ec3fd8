"""Rollouts of the next step beside the sharded update of this one: both talk to the other rank at once."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Rows, StepResult
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load
from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import sharded_job
from tests.integration.loop.seam import NoEngine, sampler_of
from tests.integration.loop.test_processes import uneven

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


def trained(job: GrpoJob) -> dict[str, Any]:
    """The lines of a training whose rollouts compare notes all the time; what was heard; what happened when."""
    heard, happened = list[bool](), list[str]()
    callbacks = replace(job.callbacks, on_step=lambda step, line, _: happened.append(f"update {step}"))

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        happened.append(f"rollouts {step + 1}")
        for number in range(30):
            heard.append(await job.ranks.gather("notes", (step, number)) == [(step, number)] * 2)
            await asyncio.sleep(0.01 * job.ranks.number)
        found: StepResult = await sampler_of(uneven)(records, step, sampled)
        return found

    with job.ranks:
        TrainingLoop(replace(job, callbacks=callbacks), load(job), NoEngine(), sample_step).run()
    return {"lines": read_rows(job.folder.metrics), "heard": heard, "happened": happened}


def beside_and_after(place: Place) -> dict[str, Any]:
    found = {}
    for overlap in (0, 1):
        job = sharded_job(place, str(overlap), steps=3, kl_beta=0.1, overlap=overlap, sampling_cap=0.0)
        found[str(overlap)] = trained(job)
    return found


@on_ranks(beside_and_after)
def test_two_ranks_sample_the_next_step_while_they_update_this_one(found: list[dict[str, Any]]) -> None:
    leader = found[0]
    assert leader["0"]["happened"] == [
        f"{what} {step}" for step in (1, 2, 3) for what in ("rollouts", "update")
    ]
    begun = [leader["1"]["happened"].index(f"rollouts {step + 1}") for step in (1, 2)]
    assert all(
        leader["1"]["happened"].index(f"update {step}") > at for step, at in zip((1, 2), begun, strict=True)
    )


@on_ranks(beside_and_after)
def test_what_rollouts_tell_each_other_does_not_meet_the_update(found: list[dict[str, Any]]) -> None:
    for rank in found:
        after, beside = rank["0"], rank["1"]
        assert all(after["heard"]) and all(beside["heard"]) and len(beside["heard"]) == 90
        for one, two in zip(after["lines"], beside["lines"], strict=True):
            same = ("step", "loss", "kl", "grad_norm", "reward")
            assert {name: one[name] for name in same} == {name: two[name] for name in same}
