"""GiB on the run's volume: what a stage needs while it works, and what of it stays."""

from typing import NamedTuple

from scope_selfplay.config import ModelConfig, TrainConfig
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.model_size import ModelSize
from scope_selfplay.planning.sharding import FULL, export_bytes

_GIB = 2.0**30


class StageDisk(NamedTuple):
    """GiB. `working` is the most while the stage runs, `kept` what its folder has at the end."""

    working: float
    kept: float


def training_disk(model: ModelConfig, settings: TrainConfig, size: ModelSize, text: float) -> StageDisk:
    """`text` is the GiB of the stage's records. A new checkpoint is whole before the oldest is removed."""
    export = export_bytes(model, size) / _GIB
    checkpoint = checkpoint_gib(model, size)
    if model.lora.rank:
        export += FULL * model.lora.rank * size.shape.adapted(model.lora.target_modules) / _GIB
    return StageDisk(training_peak(settings, checkpoint, export) + text, export + text)


def training_peak(settings: TrainConfig, checkpoint: float, export: float) -> float:
    """The most that a training has on disk at once, in the unit of its two sizes, apart from its records."""
    saves, keep = -(-settings.steps // settings.save_every), settings.keep_checkpoints
    # The export begins when the last checkpoint is on disk.
    return max(min(saves, keep + 1) * checkpoint, min(saves, keep) * checkpoint + export)


def checkpoint_gib(model: ModelConfig, size: ModelSize) -> float:
    """Weights and two moments of Adam in float32: of the model, or of its adapter."""
    rank = model.lora.rank
    learnt = rank * size.shape.adapted(model.lora.target_modules) if rank else size.parameters
    return 3 * FULL * learnt / _GIB


def records_gib(tokens: float, assumptions: Assumptions) -> float:
    """Of the texts of rollouts."""
    return tokens * assumptions.text_bytes / _GIB
