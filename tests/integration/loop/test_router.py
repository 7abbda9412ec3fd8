"""A mixture of experts: its router learns from the loss of transformers, and the policy learns whatever the passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.training.passes import cut_passes
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import job_of, loop_of, row, weights_of

WEIGHT, RATE = 0.5, 0.1
ROWS = [row(sampled=range(60, 60 + length)) for length in (2, 9, 5, 14)]


def mixture(folder: Path, tokenizer: Path, weight: float) -> Path:
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
        router_aux_loss_coef=weight,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(str(folder))
    kept.save_pretrained(str(folder))
    return folder


def moved(policy: Path, folder: Path, tokens: int, *, flat: bool) -> dict[str, Any]:
    """What a step of plain gradient descent takes off each weight, over its rate; without advantages where `flat`."""

    def score(record: str, member: int, step: int) -> RewardedRollout:
        return RewardedRollout([ROWS[2 * int(record[1:]) + member]], 1.0 if flat else float(member))

    job = job_of(policy, folder, kl_beta=0.0, micro_tokens=tokens, clip_norm=1e9, learning_rate=RATE)
    with job.ranks:
        loop = loop_of(job, score)
        loop.optimizer = torch.optim.SGD(loop.model.trained.values(), RATE)
        loop.run()
    before, after = weights_of(policy), weights_of(job.folder.checkpoint)
    return {name: (before[name] - after[name]) / RATE for name in before}


def close(one: dict[str, Any], two: dict[str, Any]) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("tokens", [30, 1000])
def test_the_router_learns_from_the_mean_of_its_losses_over_tokens(
    random_policy: Path, tmp_path: Path, tokens: int
) -> None:
    policy = mixture(tmp_path / "m0", random_policy, WEIGHT)
    model, lengths = load_model(policy), [each.length for each in ROWS]
    (passes,) = cut_passes([lengths], tokens, packed=False)
    assert (len(passes) > 1) == (tokens == 30)
    for places in passes:
        longest = max(lengths[place] for place in places)
        lines = [ROWS[place].prompt_ids + ROWS[place].completion_ids for place in places]
        ids = torch.tensor([line + [0] * (longest - len(line)) for line in lines])
        mask = torch.tensor([[1] * len(line) + [0] * (longest - len(line)) for line in lines])
        said = model(input_ids=ids, attention_mask=mask, output_router_logits=True)
        loss = load_balancing_loss_func(said.router_logits, 4, 2, mask)
        (WEIGHT * loss * int(mask.sum()) / sum(lengths)).backward()
    expected = {
        name: torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in model.named_parameters()
    }
    found = moved(policy, tmp_path / "stage", tokens, flat=True)
    close(expected, found)
    gates = [value for name, value in found.items() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 2 and all(float(gate.abs().max()) > 1e-4 for gate in gates)


def test_what_a_policy_learns_does_not_depend_on_its_passes(random_policy: Path, tmp_path: Path) -> None:
    policy = mixture(tmp_path / "m0", random_policy, 0.0)
    one, several = (moved(policy, tmp_path / str(tokens), tokens, flat=False) for tokens in (1000, 30))
    close(one, several)
    assert max(float(each.abs().max()) for each in one.values()) > 1e-3
