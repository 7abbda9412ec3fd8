"""Every rank refers the KL to M0: to the weights of its file, of which it holds a share."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Rows, StepResult
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.passes import BatchRow, batch_of
from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import changed, ending_of, loop_of, sharded_job, trained_metrics
from tests.integration.loop.seam import NoEngine, row, sampler_of
from tests.integration.loop.test_processes import uneven

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


def first_step_elsewhere(place: Place) -> dict[str, Any]:
    return trained_metrics(sharded_job(place, start=place.speaking_policy, kl_beta=0.1))[0]


@on_ranks(first_step_elsewhere)
def test_a_training_that_starts_elsewhere_diverges_from_m0(found: list[dict[str, Any]]) -> None:
    assert all(rank["kl"] > 0.1 for rank in found)


def compared_with_file(job: GrpoJob) -> dict[str, Any]:
    """What the reference says and what the file's model does, in bf16; what is gathered for it at once."""
    import torch

    batch = batch_of([BatchRow(row(70, 71, sampled=(60, 61, 64)))], 0, torch.device("cpu"), packed=False)
    gather, gathered = torch.distributed.all_gather_single, list[int]()

    def watched(output: Any, *others: Any, **options: Any) -> Any:
        gathered.append(output.numel())
        return gather(output, *others, **options)

    with job.ranks:
        model = load(job)
        torch.distributed.all_gather_single = watched
        try:
            said = model.refer(batch)[batch.sampled]
        finally:
            torch.distributed.all_gather_single = gather
    plain = load_model(job.start.base, precision="bfloat16")
    with torch.no_grad():
        logits = plain(input_ids=batch.ids).logits.float().log_softmax(-1)
    wanted = logits[:, :-1].gather(-1, batch.ids[:, 1:, None])[..., 0][batch.sampled[:, 1:]]
    whole = sum(weight.numel() for weight in plain.parameters())
    apart = float((said - wanted).abs().max())
    return {"apart": apart, "spread": float(wanted.std()), "whole": whole, "gathered": gathered}


def references(place: Place) -> dict[str, Any]:
    elsewhere: dict[str, Any] = {"start": place.speaking_policy}
    told = {"weights": elsewhere, "adapter": {**elsewhere, "lora": True}, "adapter over M0": {"lora": True}}
    jobs = {name: sharded_job(place, name, kl_beta=0.1, **settings) for name, settings in told.items()}
    return {name: compared_with_file(job) for name, job in jobs.items()}


@on_ranks(references)
@pytest.mark.parametrize("trained", ["weights", "adapter", "adapter over M0"])
def test_the_reference_says_what_the_model_of_m0s_file_says(
    found: list[dict[str, Any]], trained: str
) -> None:
    for rank in (each[trained] for each in found):
        assert rank["apart"] == 0 < rank["spread"]
        # Layer by layer, each from the shares of both ranks, never as a whole.
        assert len(rank["gathered"]) == 4
        assert max(rank["gathered"]) < 0.6 * rank["whole"] <= sum(rank["gathered"])


def adapter_steps(place: Place) -> dict[str, Any]:
    job = sharded_job(place, steps=2, kl_beta=0.1, learning_rate=5e-2, lora=True)
    return {"kl": [line["kl"] for line in trained_metrics(job)], "changed": changed(job)}


@on_ranks(adapter_steps)
def test_an_adapter_learns_against_the_model_below_it(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert abs(rank["kl"][0]) < 1e-3 < rank["kl"][1]
        layers = {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
        assert {name.split(".")[-2] for name in rank["changed"]} == layers


def another_reference(place: Place) -> dict[str, Any]:
    def work() -> None:
        with place.ranks:
            loop = loop_of(sharded_job(place, kl_beta=0.1))
            refer = loop.model.refer
            loop.model.refer = lambda batch: refer(batch) - 1.0
            loop.run()

    return ending_of(work)


@on_ranks(another_reference)
def test_a_reference_that_is_not_m0_ends_the_training_before_the_first_update(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["code"] for rank in found] == [64, 64]
    assert "KL" in max(rank["error"] for rank in found)


def read_while_judged(place: Place) -> dict[str, Any]:
    """Steps whose rows are told before they are judged, and the same steps with both at once."""

    async def early(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        found: StepResult = await sampler_of(uneven)(records, step, sampled)
        sampled(found.rows)
        return found

    told = sharded_job(place, "early", steps=2, kl_beta=0.1)
    with told.ranks:
        TrainingLoop(told, load(told), NoEngine(), early).run()
    usual = sharded_job(place, "usual", steps=2, kl_beta=0.1)
    return {"early": read_rows(told.folder.metrics), "usual": trained_metrics(usual, uneven)}


@on_ranks(read_while_judged)
def test_what_the_reference_says_does_not_depend_on_when_it_is_asked(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for one, two in zip(rank["early"], rank["usual"], strict=True):
            assert all(one[name] == two[name] for name in ("kl", "loss", "grad_norm"))
        assert abs(rank["early"][0]["kl"]) < 1e-3 < rank["early"][1]["kl"]
