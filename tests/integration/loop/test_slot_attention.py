"""Keys and values that are read where they lie: the logits of a plain forward pass, for every family of models."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from scope_selfplay.inference.slots import SlotCache

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


def test_a_model_without_torchs_attention_is_read_as_its_code_reads(model: Any) -> None:
    ids = list(range(3, 20))
    expected = plain(model, [*ids, 7])
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    cache = SlotCache(other, slots=2, max_length=60)
    cache.forward([ids], [1], [0])
    assert np.abs(cache.forward([[7]], [1], [17])[0] - expected).max() < 1e-4
