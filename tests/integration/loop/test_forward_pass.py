"""Rows score side by side or packed as each does alone, with its gradients, and passes have hardly any padding; routers
learn from the loss of transformers, whatever the passes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.training.model import Placement, TrainedModel
from scope_selfplay.training.passes import BatchRow, RewardedRollout, TrainingRow, batch_of, cut_passes
from scope_selfplay.training.ranks import Ranks
from tests.integration.loop.seam import job_of, loop_of, row, weights_of

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
    assert not trained.packed, "only kernels that take sequences apart pack by themselves"
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


WEIGHT, RATE = 0.5, 0.1
MIXED = [row(sampled=range(60, 60 + length)) for length in (2, 9, 5, 14)]


def mixture(folder: Path, tokenizer: Path) -> Path:
    set_seed(0)
    kept = AutoTokenizer.from_pretrained(str(tokenizer))
    config = Qwen3MoeConfig(
        vocab_size=len(kept),
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=WEIGHT,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(str(folder))
    kept.save_pretrained(str(folder))
    return folder


def moved(policy: Path, folder: Path, tokens: int) -> dict[str, Any]:
    """What a step of plain gradient descent without advantages takes off each weight, over its rate."""

    def score(record: str, member: int, step: int) -> RewardedRollout:
        return RewardedRollout([MIXED[2 * int(record[1:]) + member]], 1.0)

    job = job_of(policy, folder, kl_beta=0.0, micro_tokens=tokens, clip_norm=1e9, learning_rate=RATE)
    with job.ranks:
        loop = loop_of(job, score)
        loop.optimizer = torch.optim.SGD(loop.model.trained.values(), RATE)
        loop.run()
    before, after = weights_of(policy), weights_of(job.folder.checkpoint)
    return {name: (before[name] - after[name]) / RATE for name in before}


@pytest.mark.parametrize("tokens", [30, 1000])
def test_the_router_learns_from_the_mean_of_its_losses_over_tokens(
    random_policy: Path, tmp_path: Path, tokens: int
) -> None:
    policy = mixture(tmp_path / "m0", random_policy)
    model, lengths = load_model(policy), [each.length for each in MIXED]
    (passes,) = cut_passes([lengths], tokens, packed=False)
    assert (len(passes) > 1) == (tokens == 30)
    for places in passes:
        longest = max(lengths[place] for place in places)
        lines = [MIXED[place].prompt_ids + MIXED[place].completion_ids for place in places]
        ids = torch.tensor([line + [0] * (longest - len(line)) for line in lines])
        mask = torch.tensor([[1] * len(line) + [0] * (longest - len(line)) for line in lines])
        said = model(input_ids=ids, attention_mask=mask, output_router_logits=True)
        loss = load_balancing_loss_func(said.router_logits, 4, 2, mask)
        (WEIGHT * loss * int(mask.sum()) / sum(lengths)).backward()
    found = moved(policy, tmp_path / "stage", tokens)
    for name, each in model.named_parameters():
        expected = torch.zeros_like(each) if each.grad is None else each.grad
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5, msg=name)
    gates = [value for name, value in found.items() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 2 and all(float(gate.abs().max()) > 1e-4 for gate in gates)
