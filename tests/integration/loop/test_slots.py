"""Keys and values that are read where they lie: the logits of a plain forward pass, for every family of models; in
bfloat16 from packed weights nearly these.
"""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from scope_selfplay.inference import slots as packed_weights
from scope_selfplay.inference.slots import SlotCache, can_pack, frozen_copy, packed_copy

SIZES = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Olmo2": {},
    "Olmo3": {"sliding_window": 8, "layer_types": LAYERS},
    "Mistral": {"sliding_window": 8},
}


@pytest.fixture(params=list(FAMILIES), scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    config = getattr(transformers, f"{request.param}Config")(**SIZES, **FAMILIES[request.param])
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    made.eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.2)
    return made


def plain(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].numpy()


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [4, 0, 3, 1], [11, 0, 5, 7]], ids=["dense", "gaps", "far"])
def test_logits_are_those_of_a_plain_forward_pass(model: Any, slots: list[int]) -> None:
    noise = np.random.default_rng(1)
    held = [noise.integers(1, 120, size=length).tolist() for length in (30, 3, 17, 9)]
    cache = SlotCache(model, slots=12, max_length=60)
    first = cache.forward(held, slots, [0] * 4)
    # One token each, then some of them several, as the next turn of an episode.
    for widths in ([1, 1, 1, 1], [4, 1, 9, 2], [1, 1, 1, 1]):
        assert np.abs(first - np.stack([plain(model, ids) for ids in held])).max() < 1e-4
        rows = [noise.integers(1, 120, size=width).tolist() for width in widths]
        first = cache.forward(rows, slots, [len(ids) for ids in held])
        held = [ids + row for ids, row in zip(held, rows, strict=True)]


class PlainLinear(torch.nn.Module):
    """What `PackedLinear` computes, on CPUs that cannot pack."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self._layers = [(each.weight.data, each.bias) for each in layers]

    def forward(self, states: Any) -> Any:
        return torch.cat([torch.nn.functional.linear(states, *each) for each in self._layers], dim=-1)


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


@pytest.mark.parametrize("length", [20, 1500])
@pytest.mark.parametrize(
    ("kind", "activation"), [("llama", "gelu"), ("qwen2", "silu"), ("qwen3", "silu"), ("mistral", "silu")]
)
def test_log_probabilities_are_those_of_float32_however_long_the_prompt_is(
    kind: str, activation: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_pack(torch.device("cpu")):
        monkeypatch.setattr(packed_weights, "PackedLinear", PlainLinear)
    model = small(kind, hidden_act=activation)
    exact, ours = (log_probabilities(each, length) for each in (frozen_copy(model), packed_copy(model)))
    assert 0 < float((exact - ours).abs().mean()) < 0.15


def log_probabilities(model: Any, length: int) -> Any:
    """Of the token after a prompt of so many random ones."""
    prompt = torch.randint(0, 20_000, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    cache = SlotCache(model, slots=1, max_length=length)
    return torch.tensor(cache.forward([prompt], [0], [0])).log_softmax(-1)
