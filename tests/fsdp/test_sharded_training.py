"""The project's own training, sharded by FSDP2 as on GPUs."""

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Role
from scope_selfplay.training.checkpoint import Checkpoints
from scope_selfplay.training.engines import open_engine
from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import changed, ending_of, loop_of, sharded_job, trained_metrics

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


def two_steps(place: Place) -> dict[str, Any]:
    """The second rank has a policy without weights: the first one reads them for both."""
    start = place.random_policy
    if not place.ranks.leads:
        start = shutil.copytree(start, place.folder / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    job = sharded_job(place, start=start, steps=2)
    return {"lines": trained_metrics(job), "changed": changed(job) if place.ranks.leads else []}


@on_ranks(two_steps)
def test_both_ranks_train_one_policy_that_the_first_one_reads(found: list[dict[str, Any]]) -> None:
    one, two = found
    assert one["lines"] == two["lines"] and one["changed"]
    assert [line["step"] for line in one["lines"]] == [1, 2]
    assert all(line["reward"] == 0.5 and line["grad_norm"] > 0 for line in one["lines"])


def sharded_weights(place: Place) -> dict[str, Any]:
    """What a rank holds after a training, and what an engine in its process says to it."""
    job = sharded_job(place)
    with job.ranks:
        loop = loop_of(job)
        loop.run()
    model = loop.model
    whole = sum(weight.numel() for weight in model.trained.values())
    own = [weight.to_local().numel() for weight in model.trained.values()]
    states = loop.optimizer.state.values()
    moments = [state[name].to_local().numel() for state in states for name in ("exp_avg", "exp_avg_sq")]
    context: Any = SimpleNamespace(activity=SimpleNamespace(sampled=None))
    try:
        open_engine(job, model, context, Role.SOLVER, "S_0")
    except ConfigError as error:
        return {"whole": whole, "own": sum(own), "moments": sum(moments), "error": str(error)}
    return {}


@on_ranks(sharded_weights)
def test_a_rank_holds_its_share_of_the_weights_and_of_their_moments(found: list[dict[str, Any]]) -> None:
    assert sum(rank["own"] for rank in found) == found[0]["whole"]
    for rank in found:
        assert rank["own"] < 0.6 * rank["whole"] and rank["moments"] == 2 * rank["own"]


@on_ranks(sharded_weights)
def test_a_policy_of_which_a_rank_holds_a_share_is_not_sampled_in_process(
    found: list[dict[str, Any]],
) -> None:
    for rank in found:
        assert "each of 2 GPUs holds a share" in rank["error"] and "vllm_colocated" in rank["error"]


def after_a_leap(place: Place) -> dict[str, Any]:
    """The first update throws the weights out of what can be computed with."""
    job = sharded_job(place, steps=3, learning_rate=1e30)
    ending = ending_of(lambda: trained_metrics(job))
    newest = Checkpoints(job.folder.work, job.ranks).newest(print)
    return {**ending, "newest": newest and newest.name}


@on_ranks(after_a_leap)
def test_a_step_that_is_not_finite_ends_every_rank_before_it_changes_a_weight(
    found: list[dict[str, Any]],
) -> None:
    told = max(rank["error"] for rank in found)
    assert told.startswith("step 2: the loss is nan") and "learning_rate" in told
    assert all((rank["code"], rank["newest"]) == (64, "checkpoint-1") for rank in found)
