"""Rows score side by side or packed as each does alone, with its gradients, and passes have hardly any padding."""

from pathlib import Path
from typing import Any

import pytest
import torch

from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.model import Placement, TrainedModel
from scope_selfplay.training.passes import BatchRow, batch_of
from scope_selfplay.training.ranks import Ranks
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.integration.loop.seam import NoEngine, furthest, job_of, loop_of, row, sampler_of

ROWS = [
    TrainingRow([40, 41, 42], [60, 61], [1, 1], [0.0] * 2),
    TrainingRow([43], [62, 63, 64, 65, 66], [1, 0, 0, 1, 1], [0.0] * 5),
    TrainingRow([44, 45, 46, 47, 48], [67], [1], [0.0]),
]


def model_of(policy: Path, attention: str, temperature: float = 1.0) -> TrainedModel:
    placement = Placement(torch.device("cpu"), torch.float32)
    return TrainedModel(policy, policy, 0, Ranks(), placement, temperature=temperature, attention=attention)


def gradients(model: Any, total: Any) -> dict[str, Any]:
    model.zero_grad()
    total.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("attention", "temperature"), [("eager", 1.0), ("sdpa", 1.0), ("sdpa", 0.7)])
def test_no_row_sees_another_or_the_padding(
    random_policy: Path, attention: str, temperature: float, packed: bool
) -> None:
    plain, trained = load_model(random_policy), model_of(random_policy, attention, temperature)
    batch = batch_of([BatchRow(each) for each in ROWS], 0, "cpu", packed=packed)
    scores = trained.score(batch)
    referred, total = batch.of_rows(trained.refer(batch)), 0.0
    for place, each in enumerate(ROWS):
        ids = torch.tensor([each.prompt_ids + each.completion_ids])
        logps = (plain(input_ids=ids).logits[0, :-1] / temperature).log_softmax(dim=-1)
        said = logps.gather(-1, ids[0, 1:, None])[:, 0]
        entropies = -(logps.exp() * logps).sum(dim=-1)
        wanted = torch.tensor([0] * (len(each.prompt_ids) - 1) + each.mask)
        total = total + (place + 1) * (said * wanted).sum()
        for found, expected in (
            (batch.of_rows(scores.logps)[place], said),
            (referred[place], said),
            (batch.of_rows(scores.entropies)[place], entropies),
        ):
            assert found[0].item() == 0.0
            torch.testing.assert_close(found[1:], expected * wanted, rtol=1e-4, atol=1e-4)
    expected = gradients(plain, total)
    ours = gradients(trained.model, ((batch.rows + 1) * scores.logps * batch.sampled).sum())
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-3)


def test_only_kernels_that_take_sequences_apart_pack(random_policy: Path) -> None:
    assert not model_of(random_policy, "sdpa").packed


def uneven(record: str, member: int, step: int) -> RewardedRollout:
    """The rollouts of a step are 5 to 44 tokens long."""
    size = 2 + 13 * (2 * int(record[1:]) % 4 + member)
    return RewardedRollout([row(sampled=[60 + number for number in range(size)])], float(member))


def test_a_training_computes_hardly_any_padding(random_policy: Path, tmp_path: Path) -> None:
    computed: list[int] = []
    job = job_of(random_policy, tmp_path / "stage", steps=3, kl_beta=0.0, micro_tokens=50)
    with job.ranks:
        loop = loop_of(job, uneven)
        loop.model.model.register_forward_pre_hook(
            lambda module, args, kwargs: computed.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        loop.run()
    real = sum(3 + 2 + 13 * place for place in range(4))
    assert len(computed) == 3 * 3
    assert sum(computed) == 3 * (44 + 31 + 2 * 18)
    for line in read_rows(job.folder.metrics):
        assert line["padding"] == pytest.approx((44 + 31 + 2 * 18) / real)


def test_packed_rows_train_as_padded_ones_do(random_policy: Path, tmp_path: Path) -> None:
    folders = []
    for packed in (False, True):
        job = job_of(random_policy, tmp_path / str(packed), steps=2, kl_beta=0.1, micro_tokens=60)
        with job.ranks:
            model = load(job)
            model.packed = packed
            TrainingLoop(job, model, NoEngine(), sampler_of(uneven)).run()
        folders.append(job.folder)
    padded, together = (read_rows(folder.metrics) for folder in folders)
    for one, two in zip(padded, together, strict=True):
        assert two["padding"] < one["padding"]
        for name in ("loss", "grad_norm", "kl", "entropy"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
    assert furthest(*(folder.checkpoint for folder in folders)) < 5e-5
