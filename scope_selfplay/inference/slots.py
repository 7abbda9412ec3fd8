"""Key and value states of many sequences side by side, each in its own slot and at its own length.

transformers' caches grow all rows together; here every row writes at its own position and reads its own past.

And a model for decoding on a CPU: bfloat16 weights in the order in which its matrix units read them, in few operations.
torch multiplies bfloat16 by weights as they lie, and reorders them in every pass: in a pass over few tokens that takes
longer than the product. transformers' layers take some sixty small operations each, which takes longer still. Packed
weights are ordered once, those that read the same input as one, and the papers' families have layers of their own.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import rms_norm, silu
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "scope_slots"
# Rows without a sequence are read, too; up to so many times the work, that is cheaper than copying.
_SPARSEST = 2


@dataclass(frozen=True)
class Reading:
    """Which `slots` a pass reads: in place, if a slice, of which `rows` have a sequence (None: all, in order).

    A pass over few of many slots reads copies of them.
    """

    slots: slice | torch.Tensor
    rows: torch.Tensor | None = None

    @classmethod
    def of(cls, slots: Sequence[int], device: torch.device) -> "Reading":
        first, end = min(slots), max(slots) + 1
        if end - first > _SPARSEST * len(slots):
            return cls(torch.tensor(slots, device=device))
        if list(slots) == list(range(first, end)):
            return cls(slice(first, end))
        return cls(slice(first, end), torch.tensor(slots, device=device) - first)

    def spread(self, states: torch.Tensor) -> torch.Tensor:
        """States of the sequences as states of the slots, 0 where there is no sequence."""
        if self.rows is None:
            return states
        assert isinstance(self.slots, slice)
        spread = states.new_zeros((self.slots.stop - self.slots.start, *states.shape[1:]))
        spread[self.rows] = states
        return spread


def reads_in_place(model: Any) -> bool:
    """Whether the model's attention may be `slot_attention`. It then is; passes that are not ours stay the same."""
    if not getattr(model, "_supports_attention_backend", False):
        return False
    if model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = _NAME
    return bool(model.config._attn_implementation == _NAME)


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    reading: Reading | None = None,
    **others: Any,
) -> Any:
    """As transformers asks for it: queries (sequences, heads, width, size), the result (sequences, width, heads, size).

    With `reading`, keys and values are those of its slots, and `attention_mask` adds to the scores of
    (slots, 1, heads of a group * width, keys).
    """
    if reading is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    query = reading.spread(query)
    slots, heads, width, size = query.shape
    grouped = query.reshape(slots, key.shape[1], heads // key.shape[1] * width, size)
    found = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    found = found.reshape(slots, heads, width, size)
    found = found if reading.rows is None else found[reading.rows]
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, slot_attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


def frozen_copy(model: Any) -> Any:
    """The weights as they are now, for generation only."""
    return copy.deepcopy(getattr(model, "module", model)).eval().requires_grad_(False)


@contextmanager
def threads(share: int, least: int = 1) -> Iterator[None]:
    """torch computes with its part of the cores, where so many processes share them, and on `least` at the least."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(least, before // share))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class SlotCache:
    def __init__(self, model: Any, *, slots: int, max_length: int) -> None:
        self._model = model
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # One spare position of every slot takes the writes of padding.
        shape = (slots, config.num_key_value_heads, max_length + 1, head_dim)
        options = {"dtype": model.dtype, "device": model.device}
        self._layers = [_SlotLayer(shape, options) for _ in range(config.num_hidden_layers)]
        self._spare = max_length
        self._cache: Any = Cache(layers=self._layers)
        self._in_place = reads_in_place(model)
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._windows = _windows(config)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for layer in self._layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]

    @torch.inference_mode()
    def forward(
        self, rows: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Append `rows` of ids to their slots at `starts`; the logits after the last id of each, (rows, vocabulary)."""
        device = self._model.device
        lengths = torch.tensor([len(row) for row in rows])
        width = int(lengths.max())
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        columns = torch.arange(width)
        positions = torch.tensor(starts)[:, None] + columns
        span = int((positions[:, 0] + lengths).max())
        writes = torch.where(columns < lengths[:, None], positions, self._spare)
        index = torch.tensor(slots, device=device)
        reading = Reading.of(slots, device) if self._in_place else None
        places = self._layers[0].places(index, writes.to(device))
        positions = positions.to(device)
        for layer in self._layers:
            layer.aim(places, span, index if reading is None else reading.slots)
        masks = {kind: self._mask(positions, span, reading, window) for kind, window in self._windows.items()}
        hidden = self._model.model(
            input_ids=ids.to(device),
            position_ids=positions,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=self._cache,
            use_cache=True,
            **({} if reading is None else {"reading": reading}),
        ).last_hidden_state
        last = hidden[:, 0] if width == 1 else hidden[torch.arange(len(rows)), lengths - 1]
        return np.asarray(self._model.lm_head(last).float().cpu().numpy())

    @torch.inference_mode()
    def logits_alone(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The logits after `ids`, (1, vocabulary), from a pass that nothing else has part in."""
        hidden = self._model.model(
            input_ids=torch.tensor([list(ids)], device=self._model.device)
        ).last_hidden_state
        return np.asarray(self._model.lm_head(hidden[:, -1]).float().cpu().numpy())

    def _mask(
        self, positions: torch.Tensor, span: int, reading: Reading | None, window: int | None
    ) -> torch.Tensor:
        if reading is not None:
            positions = reading.spread(positions)
        keys = torch.arange(span, device=positions.device)
        seen = keys <= positions[:, None, :, None]
        if window is not None:
            seen &= keys > positions[:, None, :, None] - window
        added = torch.zeros(seen.shape, dtype=self._model.dtype, device=seen.device)
        added.masked_fill_(~seen, float("-inf"))
        if reading is None:
            return added
        return (
            added.repeat(1, 1, self._group, 1) if seen.shape[2] > 1 else added.expand(-1, -1, self._group, -1)
        )


def _windows(config: Any) -> dict[str, int | None]:
    """How far back each kind of layer sees; None: to the beginning."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if not kinds:
        return {"all": window}
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}


class _SlotLayer(CacheLayerMixin):
    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        super().__init__()
        self.keys = torch.zeros(shape, **options)
        self.values = torch.zeros(shape, **options)
        self.is_initialized = True

    def places(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the states of (rows, heads, width) lie when slots, heads and positions are counted as one."""
        _, heads, length, _ = self.keys.shape
        of_heads = slots[:, None] * heads + torch.arange(heads, device=slots.device)
        return (of_heads[:, :, None] * length + positions[:, None, :]).flatten()

    def aim(self, places: torch.Tensor, span: int, slots: torch.Tensor | slice) -> None:
        """Say where the next `update` writes, which slots it reads and how far; those of a slice are not copied."""
        self._places, self._span, self._slots = places, span, slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        return None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for held, states in ((self.keys, key_states), (self.values, value_states)):
            size = held.shape[-1]
            held.view(-1, size).index_copy_(0, self._places, states.reshape(-1, size))
        return self.keys[self._slots, :, : self._span], self.values[self._slots, :, : self._span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._span, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._span


# oneDNN chooses the order by the rows of a product; it is used for all.
_ROWS = 64
_FEW_OPERATIONS = ("llama", "qwen2", "qwen3")


def can_pack(device: torch.device) -> bool:
    """Whether this machine computes in bfloat16 faster than in float32."""
    units = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(units) and bool(torch._C._has_mkldnn)


def packed_copy(model: Any) -> Any:
    """The weights as they are now, in bfloat16 and packed, for generation only."""
    packed = frozen_copy(model)
    # Not the buffers: with the frequencies of rotary positions rounded, angles are wrong after some hundred tokens.
    for weights in packed.parameters():
        weights.data = weights.data.to(torch.bfloat16)
    config = packed.config
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    is_known = config.model_type in _FEW_OPERATIONS and config.hidden_act == "silu"
    if is_known and kinds == {"full_attention"}:
        packed.model.layers = torch.nn.ModuleList(_Layer(each, packed.config) for each in packed.model.layers)
        packed.model.forward = _Body(packed.model)
    linear = [(name, part) for name, part in packed.named_modules() if type(part) is torch.nn.Linear]
    for name, part in linear:
        parent, _, last = name.rpartition(".")
        setattr(packed.get_submodule(parent), last, PackedLinear(part))
    return packed


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
