"""Linear layers for decoding on a CPU: bfloat16 weights in the order in which its matrix units read them.

torch multiplies bfloat16 by weights as they lie, and reorders them in every pass: in a pass over few tokens that takes
longer than the product. Packed once, the products of a pass over 64 tokens take about half the time of that.
"""

import copy
from typing import Any

import torch

# oneDNN chooses the order by the rows of a product; it is used for all.
_ROWS = 64


def can_pack(device: torch.device) -> bool:
    """Whether this machine computes in bfloat16 faster than in float32."""
    units = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return device.type == "cpu" and bool(units) and torch.backends.mkldnn.is_available()


def packed_copy(model: Any) -> Any:
    """The weights as they are now, in bfloat16 and packed, for generation only."""
    packed = copy.deepcopy(getattr(model, "module", model)).to(torch.bfloat16).eval().requires_grad_(False)
    linear = [(name, part) for name, part in packed.named_modules() if type(part) is torch.nn.Linear]
    for name, part in linear:
        parent, _, last = name.rpartition(".")
        setattr(packed.get_submodule(parent), last, _PackedLinear(part))
    return packed


class _PackedLinear(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, _ROWS)
        self._bias = None if linear.bias is None else linear.bias.data

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self._weight, self._bias, "none", [], ""
        )
        return found
