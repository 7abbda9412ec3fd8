"""Keys and values that are read where they lie: the logits of a plain forward pass, for every family of models."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

import transformers

from scope_selfplay.inference import Generate, Message, Sample, slot_cache
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.slot_cache import SlotCache

pytestmark = pytest.mark.integration

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


def test_reading_in_place_differs_from_the_models_own_attention_in_rounding_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(2)
    rows = [noise.integers(1, 120, size=20 + row).tolist() for row in range(6)]

    def logits() -> Any:
        cache = SlotCache(model, slots=8, max_length=60)
        cache.forward(rows, [5, 1, 2, 0, 4, 6], [0] * 6)
        return cache.forward([[7]] * 6, [5, 1, 2, 0, 4, 6], [len(row) for row in rows])

    in_place = logits()
    monkeypatch.setattr(slot_cache, "reads_in_place", lambda model: False)
    assert np.abs(logits() - in_place).max() < 1e-5


def test_a_model_without_torchs_attention_is_read_as_its_code_reads(model: Any) -> None:
    ids = list(range(3, 20))
    expected = plain(model, [*ids, 7])
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    cache = SlotCache(other, slots=2, max_length=60)
    cache.forward([ids], [1], [0])
    assert np.abs(cache.forward([[7]], [1], [17])[0] - expected).max() < 1e-4


@pytest.mark.parametrize("shipped", [True, False], ids=["shipped", "random"])
def test_the_tokens_are_those_of_the_models_own_attention(
    shipped: bool, random_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = policy_path("embedded") if shipped else random_policy
    codec = ChatCodec.load(folder)
    prompts = [
        codec.encode_prompt([Message("user", "Report the river. " * (1 + row % 4))]) for row in range(24)
    ]

    def samples() -> list[Sample]:
        engine = InProcessModel(load_model(folder), codec, identity="S_0", slots=16, max_length=160)

        async def together() -> list[Sample]:
            calls = [engine.generate(Generate(prompt, 40), (row,)) for row, prompt in enumerate(prompts)]
            return list(await asyncio.gather(*calls))

        return asyncio.run(together())

    in_place = samples()
    monkeypatch.setattr(slot_cache, "reads_in_place", lambda model: False)
    for ours, theirs in zip(in_place, samples(), strict=True):
        assert ours.ids == theirs.ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
