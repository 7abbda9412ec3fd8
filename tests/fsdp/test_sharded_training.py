"""The project's own training, sharded by FSDP2 as on GPUs, in two ranks."""

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError, TrainingError
from scope_selfplay.base.values import Role
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.checkpoint import PARTS, Checkpoints
from scope_selfplay.training.engines import open_engine
from scope_selfplay.training.ranks import PeerEnded
from tests.fsdp.place import Found, Place, found_by, sharded_job
from tests.integration.loop.seam import Killed, killed_in, loop_of, same, saves_of, trained_metrics

pytestmark = pytest.mark.fsdp


def two_steps(place: Place) -> dict[str, Any]:
    """The second rank has a policy without weights: the first one reads them for both. What is reduced and kept is
    noted, what a rank holds at last, and what an engine in its process says to that.
    """
    import torch.distributed
    from torch.distributed.tensor import DTensor

    start = place.random_policy
    if not place.ranks.leads:
        start = shutil.copytree(start, place.folder / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    job = sharded_job(place, start=start, steps=2, kl_beta=0.1)
    reduced, unreduced, rounded, gathered = set[str](), list[int](), list[float](), list[int]()
    reduce, gather = torch.distributed.reduce_scatter_single, torch.distributed.all_gather_single

    def watched_gather(output: Any, *others: Any, **options: Any) -> Any:
        gathered.append(output.numel())
        return gather(output, *others, **options)

    def watched_reduce(*, input: Any, **others: Any) -> Any:
        reduced.add(str(input.dtype))
        return reduce(input=input, **others)

    with place.ranks:
        loop = loop_of(job)
        model, score = loop.model, loop.model.score

        def watched_score(batch: Any) -> Any:
            kept = [weight.grad for weight in model.trained.values() if weight.grad is not None]
            unreduced.append(
                sum(not isinstance(each, DTensor) or each.dtype is not torch.float32 for each in kept)
            )
            scores = score(batch)
            found = scores.logps[batch.sampled]
            rounded.append(float((found.bfloat16().float() == found).float().mean()))
            return scores

        model.score, torch.distributed.reduce_scatter_single = watched_score, watched_reduce  # type: ignore[method-assign]
        torch.distributed.all_gather_single = watched_gather
        try:
            loop.run()
        finally:
            torch.distributed.all_gather_single = gather
            torch.distributed.reduce_scatter_single = reduce
    states = loop.optimizer.state.values()
    moments = [state[name].to_local().numel() for state in states for name in ("exp_avg", "exp_avg_sq")]
    context: Any = SimpleNamespace(activity=SimpleNamespace(sampled=None))
    with pytest.raises(ConfigError) as refused:
        open_engine(job, model, context, Role.SOLVER, "S_0")
    return {
        "lines": read_rows(job.folder.metrics),
        "moved": not same(job.folder.checkpoint, place.random_policy),
        "numbers": [sorted(reduced), unreduced, max(rounded), max(gathered)],
        "whole": sum(weight.numel() for weight in model.trained.values()),
        "own": sum(weight.to_local().numel() for weight in model.trained.values()),
        "moments": sum(moments),
        "refused": str(refused.value),
    }


def test_both_ranks_train_one_policy_that_the_first_one_reads(found: Found) -> None:
    one, two = found["two_steps"]
    assert one["lines"] == two["lines"] and one["moved"]
    assert [line["step"] for line in one["lines"]] == [1, 2]
    assert all(line["reward"] == 0.5 and line["grad_norm"] > 0 for line in one["lines"])
    assert abs(one["lines"][0]["kl"]) < 1e-3 < one["lines"][1]["kl"]


def test_a_rank_holds_its_share_of_weights_moments_and_gradients_and_does_not_sample_from_it(
    found: Found,
) -> None:
    assert sum(rank["own"] for rank in found["two_steps"]) == found["two_steps"][0]["whole"]
    for rank in found["two_steps"]:
        assert rank["own"] < 0.6 * rank["whole"] and rank["moments"] == 2 * rank["own"]
        assert "each of 2 GPUs holds a share" in rank["refused"] and "vllm_colocated" in rank["refused"]
        reduced, unreduced, rounded, gathered = rank["numbers"]
        assert reduced == ["torch.float32"] and unreduced == [0] * 4
        assert gathered < 0.6 * rank["whole"], "a model is gathered layer by layer, never as a whole"
        assert rounded < 0.5, "log-probabilities reach the loss in bf16"


def after_a_leap(place: Place) -> dict[str, Any]:
    """The first update throws the weights out of what can be computed with."""
    job = sharded_job(place, steps=3, learning_rate=1e30)
    with pytest.raises((TrainingError, PeerEnded)) as ended:
        trained_metrics(job)
    fault, newest = ended.value, Checkpoints(job.folder.work, job.ranks).newest(print)
    # The first one to tell tells why.
    told = (fault.code, "") if isinstance(fault, PeerEnded) else (int(fault.exit_code), str(fault))
    return {"told": told, "newest": newest and newest.name}


def test_a_step_that_is_not_finite_ends_every_rank_before_it_changes_a_weight(found: Found) -> None:
    ranks = found["after_a_leap"]
    told = max(rank["told"][1] for rank in ranks)
    assert told.startswith("step 2: the loss is nan") and "learning_rate" in told
    assert all((rank["told"][0], rank["newest"]) == (64, "checkpoint-1") for rank in ranks)


def damaged(place: Place) -> dict[str, Any]:
    """A part of the newest checkpoint has changed on disk; the first rank goes by the one before, and so do all."""
    job = sharded_job(place, steps=3)
    with pytest.raises((Killed, PeerEnded)):
        trained_metrics(job, killed_in(2))
    if place.ranks.leads:
        part = job.folder.work / "checkpoint-2" / PARTS / "__1_0.distcp"
        part.write_bytes(part.read_bytes()[:-1] + b"!")
    with place.ranks:
        return {"newest": Checkpoints(job.folder.work, place.ranks).restore(dict, print)}


def test_all_ranks_go_by_the_newest_checkpoint_that_is_whole(found: Found) -> None:
    assert [rank["newest"] for rank in found["damaged"]] == [1, 1]


def on_two_clocks(place: Place) -> dict[str, Any]:
    """On the first rank's clock a save lasts 30 s, on the other's 1 s."""
    job = sharded_job(place, steps=10, save_every=None)
    return {"saves": saves_of(job, 30.0 if place.ranks.leads else 1.0)}


def test_all_ranks_save_when_it_is_time_on_the_first_ones_clock(found: Found) -> None:
    assert [rank["saves"] for rank in found["on_two_clocks"]] == [[3, 9], [3, 9]]


CASES = (two_steps, after_a_leap, damaged, on_two_clocks)


@pytest.fixture(scope="module")
def found(forks: list[str], tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by(forks, CASES, tmp_path_factory.mktemp("ranks"))
