"""Decoding in bfloat16 from packed weights, beside the same weights in float32."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.inference import in_process
from scope_selfplay.inference import slots as packed_weights
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec, Stops
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.slots import SlotCache, can_pack, frozen_copy, packed_copy

NEVER = Stops(frozenset(), ())

needs_units = pytest.mark.skipif(
    not can_pack(torch.device("cpu")), reason="this CPU computes in bfloat16 no faster than in float32"
)


class PlainLinear(torch.nn.Module):
    """What `PackedLinear` computes, on CPUs that cannot pack."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self._layers = [(each.weight.data, each.bias) for each in layers]

    def forward(self, states: Any) -> Any:
        return torch.cat([torch.nn.functional.linear(states, *each) for each in self._layers], dim=-1)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "mistral"])
def model(request: pytest.FixtureRequest) -> Any:
    """Mistral stands for the families whose layers stay transformers'."""
    return small(request.param)


def small(kind: str, **settings: Any) -> Any:
    set_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=20_000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=None,
        attention_bias=True,
        **({"initializer_range": 0.2} | settings),
    )
    model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    for name, weights in model.named_parameters():
        if "bias" in name or "norm" in name:
            weights += 0.3 * torch.randn_like(weights)
    return model


def sampled(model: Any, *, packed: bool) -> list[Sample]:
    engine = InProcessModel(
        model,
        ChatCodec.load(policy_path("embedded")),
        identity="S_0",
        slots=4,
        max_length=48,
        deterministic=not packed,
        packed=packed,
    )

    async def all_sampled() -> list[Sample]:
        requests = [Generate(tuple(range(5 + row, 20 + 2 * row)), 12) for row in range(6)]
        return await asyncio.gather(
            *(engine.sample(each, row, stops=NEVER) for row, each in enumerate(requests))
        )

    return asyncio.run(all_sampled())


@needs_units
def test_packed_weights_sample_nearly_what_float32_samples(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prompts of 15 to 20 tokens: two are read in a pass.
    monkeypatch.setattr(in_process, "PROMPT_PASS", 40)
    exact, packed = sampled(model, packed=False), sampled(model, packed=True)
    first = [
        abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(exact, packed, strict=True) if a.ids[0] == b.ids[0]
    ]

    # Rounding decides a token now and then, and what follows differs.
    assert len(first) >= 4 and max(first) < 0.2
    assert any(distance > 0 for distance in first), "the same numbers: nothing was rounded"
    assert model.dtype == torch.float32, "the model in training keeps its precision"


@pytest.mark.parametrize("length", [20, 1500])
@pytest.mark.parametrize(
    ("kind", "activation"),
    [("llama", "silu"), ("llama", "gelu"), ("qwen2", "silu"), ("qwen3", "silu"), ("mistral", "silu")],
)
def test_log_probabilities_are_those_of_float32_however_long_the_prompt_is(
    kind: str, activation: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_pack(torch.device("cpu")):
        monkeypatch.setattr(packed_weights, "PackedLinear", PlainLinear)
    model = small(kind, hidden_act=activation)
    exact, ours = (log_probabilities(each, length) for each in (frozen_copy(model), packed_copy(model)))
    distance = float((exact - ours).abs().mean())

    assert 0 < distance < 0.15


def log_probabilities(model: Any, length: int) -> Any:
    """Of the token after a prompt of so many random ones."""
    prompt = torch.randint(0, 20_000, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    cache = SlotCache(model, slots=1, max_length=length)
    return torch.tensor(cache.forward([prompt], [0], [0])).log_softmax(-1)
