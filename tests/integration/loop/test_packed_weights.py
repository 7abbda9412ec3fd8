"""Decoding in bfloat16 from packed weights, beside the same weights in float32."""

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from scope_selfplay.inference import Generate, Sample
from scope_selfplay.inference.codec import ChatCodec, Stops
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.packed_weights import can_pack, packed_copy
from scope_selfplay.training.policy import policy_path

pytestmark = pytest.mark.integration
NEVER = Stops(frozenset(), ())


@pytest.fixture(scope="module")
def model() -> Any:
    if not can_pack(torch.device("cpu")):
        pytest.skip("this CPU computes in bfloat16 no faster than in float32")
    set_seed(0)
    config = LlamaConfig(
        vocab_size=20_000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


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


def test_packed_weights_sample_nearly_what_float32_samples(model: Any) -> None:
    exact, packed = sampled(model, packed=False), sampled(model, packed=True)
    first = [
        abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(exact, packed, strict=True) if a.ids[0] == b.ids[0]
    ]

    # Rounding decides a token now and then, and what follows differs.
    assert len(first) >= 4 and max(first) < 0.2
    assert any(distance > 0 for distance in first), "the same numbers: nothing was rounded"
    assert model.dtype == torch.float32, "the model in training keeps its precision"


def test_every_linear_layer_is_packed_with_its_bias(model: Any) -> None:
    packed = packed_copy(model)
    assert not [name for name, part in packed.named_modules() if type(part) is torch.nn.Linear]
    states = torch.randn(3, 128)
    ours = packed.model.layers[0].self_attn.q_proj(states.bfloat16()).float()
    theirs = model.model.layers[0].self_attn.q_proj(states)
    assert torch.allclose(ours, theirs, atol=0.1 * float(theirs.detach().abs().max()))
