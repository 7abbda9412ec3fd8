"""Rows scored without padding, packed or side by side, have TRL's log-probabilities, entropies and gradients."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch
from transformers import AutoConfig
from trl.trainer.utils import add_fused_lm_head

from scope_selfplay.store.files import read_rows
from scope_selfplay.training import updating
from scope_selfplay.training.forward_pass import packs_rows, score_tokens
from scope_selfplay.training.grpo import train_grpo
from scope_selfplay.training.policy import load_model
from scope_selfplay.training.rows import RewardedRollout
from tests.integration.loop.seam import furthest, job_of, make_sampler, row

pytestmark = pytest.mark.integration

PROMPTS = [[40, 41, 42], [43], [44, 45, 46, 47, 48]]
COMPLETIONS = [[60, 61], [62, 63, 64, 65, 66], [67]]


def columns(lines: list[list[int]], left: bool) -> tuple[Any, Any]:
    width = max(map(len, lines))
    gaps = [[0] * (width - len(line)) for line in lines]
    ids = [gap + line if left else line + gap for line, gap in zip(lines, gaps, strict=True)]
    ones = [[1] * len(line) for line in lines]
    mask = [gap + one if left else one + gap for one, gap in zip(ones, gaps, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def padded() -> tuple[Any, Any]:
    """The rows as TRL has them: prompts padded on the left, completions on the right."""
    (prompts, before), (completions, after) = columns(PROMPTS, True), columns(COMPLETIONS, False)
    return torch.cat([prompts, completions], dim=1), torch.cat([before, after], dim=1)


def policy_of(folder: Path, attention: str) -> Any:
    model = load_model(folder)
    model.set_attn_implementation(attention)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def gradients(model: Any, total: Any) -> dict[str, Any]:
    model.zero_grad()
    total.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_no_row_sees_another_or_the_padding(random_policy: Path, attention: str, packed: bool) -> None:
    model = policy_of(random_policy, attention)
    ids, mask = padded()
    kept, shown = 5, mask[:, -5:]
    weights = torch.randn(shown.shape, generator=torch.Generator().manual_seed(1)) * shown
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-kept] = -100
    theirs = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    expected = gradients(model, (theirs.log_probs[:, -kept:] * weights).sum())
    ours = score_tokens(model, ids, mask, kept, filler=0, packed=packed)
    torch.testing.assert_close(ours.logps, theirs.log_probs[:, -kept:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.entropies, theirs.entropy[:, -kept:], rtol=1e-4, atol=1e-4)
    found = gradients(model, (ours.logps * weights).sum())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-3)


def test_the_tokens_that_are_wanted_score_the_same_by_way_of_their_logits(random_policy: Path) -> None:
    model = load_model(random_policy)
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    ids, mask = padded()
    wanted = torch.tensor([[0, 1, 0, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 0, 0]]).bool()
    whole = score_tokens(model, ids, mask, 5, filler=0, packed=False)
    expected = gradients(model, whole.logps[wanted].sum())
    part = score_tokens(model, ids, mask, 5, filler=0, packed=False, wanted=wanted, temperature=0.7)
    for ours, theirs in zip(part, whole, strict=True):
        torch.testing.assert_close(ours, theirs * wanted, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients(model, part.logps.sum()).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-3)


def test_only_kernels_that_take_sequences_apart_pack(random_policy: Path) -> None:
    assert not packs_rows(load_model(random_policy).config)
    config = AutoConfig.from_pretrained(str(random_policy), attn_implementation="flash_attention_2")
    assert packs_rows(config)


def uneven(record: str, member: int, step: int) -> RewardedRollout:
    """The rollouts of a step are 5 to 44 tokens long."""
    size = 2 + 13 * (2 * int(record[1:]) % 4 + member)
    return RewardedRollout([row(sampled=[60 + number for number in range(size)])], float(member))


def test_a_training_computes_hardly_any_padding(random_policy: Path, tmp_path: Path) -> None:
    computed: list[int] = []

    def counted(model: Any) -> Any:
        model.register_forward_pre_hook(
            lambda module, args, kwargs: computed.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        return make_sampler(uneven)(model)

    job = job_of(random_policy, tmp_path / "stage", steps=3, kl_beta=0.0, micro_tokens=50)
    train_grpo(job, counted)
    real = sum(3 + 2 + 13 * place for place in range(4))
    assert len(computed) == 3 * 3
    assert sum(computed) == 3 * (44 + 31 + 2 * 18)
    for line in read_rows(job.folder.metrics):
        assert line["padding"] == pytest.approx((44 + 31 + 2 * 18) / real)


def test_packed_rows_train_as_padded_ones_do(
    random_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for packed in (False, True):
        monkeypatch.setattr(updating, "packs_rows", lambda config, packed=packed: packed)
        job = job_of(random_policy, tmp_path / str(packed), steps=2, kl_beta=0.1, micro_tokens=60)
        train_grpo(job, make_sampler(uneven))
        folders.append(job.folder)
    padded, together = (read_rows(folder.metrics) for folder in folders)
    for one, two in zip(padded, together, strict=True):
        assert two["padding"] < one["padding"]
        for name in ("loss", "grad_norm", "kl", "entropy"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
    assert furthest(*(folder.checkpoint for folder in folders)) < 5e-5
