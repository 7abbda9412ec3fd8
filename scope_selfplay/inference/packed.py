"""A model for decoding on a CPU: bfloat16 weights in the order in which its matrix units read them, in few operations.

torch multiplies bfloat16 by weights as they lie, and reorders them in every pass: in a pass over few tokens that takes
longer than the product. transformers' layers take some sixty small operations each, which takes longer still. Here
weights are packed once, those that read the same input as one, and the families of the papers have layers of their own.
"""

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import rms_norm, silu

from scope_selfplay.inference.slots import slot_attention

# oneDNN chooses the order by the rows of a product; it is used for all.
_ROWS = 64
_FEW_OPERATIONS = ("llama", "qwen2", "qwen3")


def can_pack(device: torch.device) -> bool:
    """Whether this machine computes in bfloat16 faster than in float32."""
    units = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(units) and bool(torch._C._has_mkldnn)


def packed_copy(model: Any) -> Any:
    """The weights as they are now, in bfloat16 and packed, for generation only."""
    packed = copy.deepcopy(getattr(model, "module", model)).eval().requires_grad_(False)
    # Not the buffers: with the frequencies of rotary positions rounded, angles are wrong after some hundred tokens.
    for weights in packed.parameters():
        weights.data = weights.data.to(torch.bfloat16)
    if _has_known_layers(packed.config):
        packed.model.layers = torch.nn.ModuleList(_Layer(each, packed.config) for each in packed.model.layers)
        packed.model.forward = _Body(packed.model)
    linear = [(name, part) for name, part in packed.named_modules() if type(part) is torch.nn.Linear]
    for name, part in linear:
        parent, _, last = name.rpartition(".")
        setattr(packed.get_submodule(parent), last, PackedLinear(part))
    return packed


def _has_known_layers(config: Any) -> bool:
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    return (
        config.model_type in _FEW_OPERATIONS and config.hidden_act == "silu" and kinds == {"full_attention"}
    )


class PackedLinear(torch.nn.Module):
    """One linear layer, or several that read the same input."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.data for layer in layers])
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        biases = [layer.bias.data for layer in layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, "none", [], ""
        )
        return found


class _Body:
    """The layers of a model from ids to states, as its own `forward` is asked for a pass over slots."""

    def __init__(self, model: Any) -> None:
        # Its parts alone: a circle would keep the weights of earlier steps in memory.
        self._embed, self._rotary, self._norm = model.embed_tokens, model.rotary_emb, model.norm
        self._layers = list(model.layers)

    def __call__(self, *, input_ids: Any, position_ids: Any, **asked: Any) -> Any:
        states = self._embed(input_ids)
        cosine, sine = (each[:, :, None] for each in self._rotary(states, position_ids=position_ids))
        for number, layer in enumerate(self._layers):
            states = layer(states, cosine, sine, number, asked)
        return SimpleNamespace(last_hidden_state=_normed(states, self._norm))


class _Layer(torch.nn.Module):
    """A layer of Llama, Qwen2 or Qwen3 with SiLU, which is what all their published models have."""

    def __init__(self, layer: Any, config: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._size = attention.head_dim
        self._heads = (config.num_attention_heads, config.num_key_value_heads)
        self._scaling = attention.scaling
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._qkv = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = PackedLinear(attention.o_proj)
        self._gate_up = PackedLinear(mlp.gate_proj, mlp.up_proj)
        self._down = PackedLinear(mlp.down_proj)

    def forward(self, states: Any, cosine: Any, sine: Any, number: int, asked: dict[str, Any]) -> Any:
        states = states + self._attend(_normed(states, self._norms[0]), cosine, sine, number, asked)
        gate, up = self._gate_up(_normed(states, self._norms[1])).chunk(2, dim=-1)
        return states + self._down(silu(gate) * up)

    def _attend(self, states: Any, cosine: Any, sine: Any, number: int, asked: dict[str, Any]) -> Any:
        rows, width, _ = states.shape
        of_queries, of_keys = self._heads
        parts = self._qkv(states).view(rows, width, of_queries + 2 * of_keys, self._size)
        turned, values = parts[:, :, : of_queries + of_keys], parts[:, :, of_queries + of_keys :]
        if self._head_norms[0] is not None:
            split = turned.split(self._heads, dim=2)
            turned = torch.cat(list(map(_normed, split, self._head_norms)), dim=2)
        half = self._size // 2
        turned = turned * cosine + torch.cat((-turned[..., half:], turned[..., :half]), dim=-1) * sine
        queries, keys = (part.transpose(1, 2) for part in turned.split(self._heads, dim=2))
        keys, values = asked["past_key_values"].update(keys, values.transpose(1, 2), number)
        found, _ = slot_attention(
            self,
            queries,
            keys,
            values,
            asked["attention_mask"],
            scaling=self._scaling,
            reading=asked["reading"],
        )
        return self._out(found.reshape(rows, width, -1))


def _normed(states: Any, norm: Any) -> Any:
    return rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)
