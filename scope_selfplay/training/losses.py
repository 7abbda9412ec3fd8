"""The policy losses by name: which of TRL's formulas each is, how far it clips, and what its mean is taken over.

A trajectory may be one row or several (`rows`), and must count once all the same. So every loss is written as a
weighted sum over tokens: `token_weights` says what a token of a trajectory weighs, `loss_divisor` what the sum is
divided by. With one row per trajectory this is what TRL computes under the loss's own name (a test compares them).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from scope_selfplay.config import TrainConfig


class Mean(StrEnum):
    """What a loss averages over."""

    TRAJECTORIES = "trajectories"
    """Tokens of a trajectory first, then trajectories (GRPO)."""
    TOKENS = "tokens"
    """All tokens alike (DAPO)."""
    BUDGET = "budget"
    """Tokens are summed and divided by what a trajectory may spend (Dr. GRPO)."""


@dataclass(frozen=True)
class Loss:
    """`sequence`: one importance ratio per row; `scaled`: advantages are divided by the group's deviation."""

    clip_low: float
    clip_high: float
    mean: Mean
    sequence: bool = False
    scaled: bool = True
    clips_weights: bool = False

    @property
    def trl_high(self) -> float:
        """TRL adds 1 to the upper clip, but takes the bound itself where the weights are clipped."""
        return 1 + self.clip_high if self.clips_weights else self.clip_high


_LOSSES = {
    "grpo": Loss(0.2, 0.2, Mean.TRAJECTORIES),
    "dr_grpo": Loss(0.2, 0.2, Mean.BUDGET, scaled=False),
    "dapo": Loss(0.2, 0.28, Mean.TOKENS),
    # Reasoning Arena, appendix: 1 - 1.0 is no lower bound, 1 + 2.0 the upper one.
    "cispo": Loss(1.0, 2.0, Mean.TOKENS, clips_weights=True),
    "gspo": Loss(3e-4, 4e-4, Mean.TRAJECTORIES, sequence=True),
}


# TRL's vllm_importance_sampling_clip_max.
_SAMPLING_CAP = 3.0


def loss_of(settings: TrainConfig) -> Loss:
    """The loss that a role is trained with, with the clips of the config where it has any."""
    loss = _LOSSES[settings.loss]
    return replace(
        loss,
        clip_low=settings.clip_low if settings.clip_low is not None else loss.clip_low,
        clip_high=settings.clip_high if settings.clip_high is not None else loss.clip_high,
    )


def sampling_cap(settings: TrainConfig, engine: str, *, exact: bool = True) -> float | None:
    """What weights for the engine's drift from the trainer are capped at; None for no weights.

    An `exact` engine in this process computes what the trainer computes; one in bfloat16 and vLLM's kernels round
    otherwise, and rollouts that are made one step ahead come from older weights.
    """
    if settings.sampling_cap is None:
        return None if engine == "in_process" and exact and not settings.overlap else _SAMPLING_CAP
    return settings.sampling_cap or None


def token_weights(mean: Mean, lengths: Sequence[int], longest: int) -> list[float]:
    """What one sampled token of each trajectory weighs; at least 1, so that a row's weights never sum below 1.

    `lengths` are sampled tokens per trajectory, `longest` the greatest of them in the whole step, all processes.
    """
    if mean is not Mean.TRAJECTORIES:
        return [1.0] * len(lengths)
    return [longest / max(length, 1) for length in lengths]


def loss_divisor(mean: Mean, trajectories: int, tokens: int, *, longest: int, budget: int) -> float:
    """What the weighted sum of a step is divided by, from the counts of all processes.

    `tokens` are those sampled; `budget` is the number that a trajectory may spend after its prompt.
    """
    match mean:
        case Mean.TRAJECTORIES:
            return float(longest * trajectories)
        case Mean.TOKENS:
            return float(tokens)
        case Mean.BUDGET:
            return float(budget * trajectories)
