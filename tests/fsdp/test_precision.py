"""What is computed in bf16 is added up in fp32, and nothing is kept that is not sharded."""

from typing import Any

import pytest

from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import loop_of, sharded_job

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


def watched_step(place: Place) -> dict[str, Any]:
    import torch.distributed
    from torch.distributed.tensor import DTensor

    reduced, unreduced, rounded = set[str](), list[int](), list[float]()
    reduce = torch.distributed.reduce_scatter_single

    def watched_reduce(*, input: Any, **others: Any) -> Any:
        reduced.add(str(input.dtype))
        return reduce(input=input, **others)

    with place.ranks:
        loop = loop_of(sharded_job(place, kl_beta=0.1))
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

        model.score, torch.distributed.reduce_scatter_single = watched_score, watched_reduce
        try:
            loop.run()
        finally:
            torch.distributed.reduce_scatter_single = reduce
    return {"rounded": rounded, "reduced": sorted(reduced), "unreduced": unreduced}


@on_ranks(watched_step)
def test_log_probabilities_reach_the_loss_in_fp32(found: list[dict[str, Any]]) -> None:
    assert all(share < 0.5 for rank in found for share in rank["rounded"])


@on_ranks(watched_step)
def test_gradients_are_reduced_in_fp32(found: list[dict[str, Any]]) -> None:
    assert [rank["reduced"] for rank in found] == [["torch.float32"]] * 2


@on_ranks(watched_step)
def test_after_each_backward_a_rank_keeps_its_share_of_the_gradient_alone(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["unreduced"] for rank in found] == [[0, 0]] * 2
