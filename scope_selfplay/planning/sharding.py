"""Bytes of one training process under FSDP2: what is sharded and what is gathered (`training.model.shard`).

Units: every decoder layer, the embedding, and the tail (last norm and output layer; with a tied table the embedding
too). A unit is gathered in bf16 where it is used, and the next one meanwhile; the tail stays gathered from the forward
pass to its backward. Masters, gradients and Adam's two moments are float32 shards.
"""

from typing import NamedTuple

from scope_selfplay.config import ModelConfig
from scope_selfplay.planning.model_size import ModelShape, ModelSize

HALF, FULL = 2, 4
"""Bytes of a bf16 and of a float32 number."""
EXPORT_FILE = 5e9
"""Bytes of the largest file of an export."""
HEAD_TILE = (4096, 8192)
"""Tokens and words of a tile of logits in TRL's fused output layer."""


class Units(NamedTuple):
    """Parameters of the units that are gathered."""

    layer: float
    embedding: float
    tail: float


class UpdateBytes(NamedTuple):
    """What a forward and backward pass takes beside shards."""

    gathered: float
    """Unsharded bf16 units, and a gradient on its way to the shards: bf16, and float32 to reduce."""
    head: float
    """Gradients of TRL's fused output layer and a tile of its logits, in float32."""
    activations: float
    """Under gradient checkpointing: the input of every layer, and all of the layer that is worked on."""


def export_bytes(model: ModelConfig, size: ModelSize) -> float:
    """Of a plain checkpoint: as M0 is stored, which is bf16 for the models of today, or float32."""
    return (FULL if model.export_dtype == "float32" else HALF) * size.parameters


def units_of(size: ModelSize) -> Units:
    shape = size.shape
    tail = shape.table + shape.hidden
    return Units(size.layer, 0 if shape.tied else shape.table, tail)


def update_bytes(size: ModelSize, tokens: int, *, sharded: bool, trained: float) -> UpdateBytes:
    """`tokens` of a micro batch, padding included; `trained` is the share of the weights that have gradients."""
    shape, units = size.shape, units_of(size)
    if sharded:
        gathered = HALF * (units.tail + max(2 * units.layer, units.embedding + units.layer))
        gathered += trained * (HALF * max(units.tail, units.layer) + FULL * units.layer)
    else:
        # Without FSDP autocast keeps bf16 copies of all weights until the pass ends.
        gathered = HALF * size.parameters
    head = trained * FULL * shape.table + FULL * HEAD_TILE[0] * min(HEAD_TILE[1], shape.vocabulary)
    # Gradients of the last hidden states are float32, too.
    head += FULL * tokens * shape.hidden
    activations = tokens * (HALF * shape.hidden * shape.layers + layer_activations(shape))
    return UpdateBytes(gathered, head, activations)


def layer_activations(shape: ModelShape) -> int:
    """Bytes per token that one decoder layer keeps for its backward pass, with an attention that keeps no scores.

    Counted on the meta device: norms and rotations in float32, four times the feed-forward width in bf16.
    """
    return 17 * (shape.hidden + shape.queries + shape.keys) + 8 * shape.between


def pinned_bytes(size: ModelSize, processes: int, width: int) -> float:
    """Host memory of one process for its shards of all weights at `width` bytes, pinned.

    torch rounds every pinned tensor up to a power of two, a third more for Qwen3-8B.
    """
    shape = size.shape
    layer = sum(_rounded(-(-rows // processes) * columns * width) for rows, columns in shape.matrices)
    table = _rounded(-(-shape.vocabulary // processes) * shape.hidden * width)
    # A guessed shape has about as many parameters as the model: the rest is scaled.
    scale = size.parameters / shape.parameters
    return scale * (shape.layers * layer + (1 if shape.tied else 2) * table)


def _rounded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else size
