"""The policy losses by name, what a token weighs in them, advantages, and the loss of one forward pass.

A trajectory may be one row or several (`passes`), and must count once all the same. So every loss is a weighted sum
over sampled tokens, and `token_weight` says what a token of a trajectory weighs, from the counts of all ranks: the
division by rollouts, tokens or budget is in the weight. With one row per trajectory this is what TRL computes under the
loss's own name (a test compares them).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_selfplay.base.errors import TrainingError
from scope_selfplay.config.training import ExplicitReward, SolverConfig, TrainConfig
from scope_selfplay.rewards.equations import group_advantages

if TYPE_CHECKING:
    from scope_selfplay.training.passes import Batch

MOST_FIRST_KL = 0.05
"""Log-probabilities would have to be 0.3 apart: in bf16, passes of other shapes move them by 0.015, the KL by 1e-4."""
_SAMPLING_CAP = 3.0
"""TRL's vllm_importance_sampling_clip_max."""


class Average(StrEnum):
    """What a loss averages over."""

    TRAJECTORIES = "trajectories"
    """Tokens of a trajectory first, then trajectories (GRPO)."""
    TOKENS = "tokens"
    """All tokens alike (DAPO)."""
    BUDGET = "budget"
    """Tokens are summed and divided by what a trajectory may spend (Dr. GRPO)."""


class AdvantageScale(StrEnum):
    """What an advantage, a reward less the mean of its group, is divided by."""

    GROUP = "group"
    """The standard deviation of its group (equation 2)."""
    STEP = "step"
    """That of all rewards of the step (GDPO, whose sums are 0 on average in every group)."""
    NONE = "none"
    GIVEN = "given"
    """Rewards are advantages already: a supervised start has 1 for every row."""


@dataclass(frozen=True)
class Loss:
    """`sequence`: one importance ratio per row; `scaled`: advantages are divided by a deviation; `clips_weights`: the
    importance weights are clipped, not the objective (CISPO).
    """

    clip_low: float
    clip_high: float
    average: Average
    sequence: bool = False
    scaled: bool = True
    clips_weights: bool = False


_LOSSES = {
    "grpo": Loss(0.2, 0.2, Average.TRAJECTORIES),
    "dr_grpo": Loss(0.2, 0.2, Average.BUDGET, scaled=False),
    "dapo": Loss(0.2, 0.28, Average.TOKENS),
    # Reasoning Arena, appendix: 1 - 1.0 is no lower bound, 1 + 2.0 the upper one.
    "cispo": Loss(1.0, 2.0, Average.TOKENS, clips_weights=True),
    "gspo": Loss(3e-4, 4e-4, Average.TRAJECTORIES, sequence=True),
}


def loss_of(settings: TrainConfig) -> Loss:
    """The loss that a role is trained with."""
    return _LOSSES[settings.loss]


def scale_of(settings: TrainConfig) -> AdvantageScale:
    """What a role's advantages are divided by."""
    if not loss_of(settings).scaled:
        return AdvantageScale.NONE
    reward = settings.reward if isinstance(settings, SolverConfig) else None
    by_step = isinstance(reward, ExplicitReward) and reward.aggregation == "normalize_then_sum"
    return AdvantageScale.STEP if by_step else AdvantageScale.GROUP


def sampling_cap(settings: TrainConfig, engine: str, *, exact: bool = True) -> float | None:
    """What weights for the engine's drift from the trainer are capped at; None for no weights.

    An `exact` engine in this process computes what the trainer computes; one in bfloat16 and vLLM's kernels round
    otherwise, and rollouts that are made one step ahead come from older weights.
    """
    if settings.sampling_cap is None:
        return None if engine == "in_process" and exact and not settings.overlap else _SAMPLING_CAP
    return settings.sampling_cap or None


def advantages(groups: Sequence[Sequence[float | None]], scale: AdvantageScale) -> list[list[float]]:
    """The advantages of the rollouts of a step, group by group; exactly 0 without a reward and in a flat group (but for
    `GIVEN`). Deviations are the population's. With `STEP` the groups are those of all ranks.
    """
    if scale is AdvantageScale.GIVEN:
        return [[0.0 if reward is None else reward for reward in group] for group in groups]
    if scale is AdvantageScale.GROUP:
        return [group_advantages(group) for group in groups]
    spread = 1.0
    if scale is AdvantageScale.STEP:
        known = [reward for group in groups for reward in group if reward is not None]
        spread = pstdev(known or [0.0]) + 1e-6
    return [[value / spread for value in _centred(group)] for group in groups]


def _centred(group: Sequence[float | None]) -> list[float]:
    known = [reward for reward in group if reward is not None]
    if len(set(known)) < 2:
        return [0.0] * len(group)
    mean = sum(known) / len(known)
    return [0.0 if reward is None else reward - mean for reward in group]


class Counts(NamedTuple):
    """What a loss divides by: the rollouts of an update that count, in all ranks, and their sampled tokens."""

    rollouts: int
    tokens: int
    budget: int
    """Tokens that a rollout may spend after its prompt."""


def token_weight(average: Average, sampled: int, counts: Counts) -> float:
    """What one sampled token weighs, of a rollout with so many of them."""
    match average:
        case Average.TRAJECTORIES:
            return 1.0 / (sampled * counts.rollouts)
        case Average.TOKENS:
            return 1.0 / counts.tokens
        case Average.BUDGET:
            return 1.0 / (counts.budget * counts.rollouts)


class PassTotals(NamedTuple):
    """Of the tokens of passes, added up over passes and ranks, but `drift_max`; up to `clipped` as they weigh."""

    loss: float
    weight: float
    kl: float
    entropy: float
    clipped: float
    drift: float
    drawn: float
    drift_max: float

    @classmethod
    def joined(cls, parts: "Sequence[PassTotals]") -> "PassTotals":
        *sums, greatest = zip(*parts, strict=True)
        return cls._make([*map(sum, sums), max(greatest)])


@dataclass(frozen=True)
class PolicyLoss:
    """What the update of a step minimises; `beta` weighs the KL to M0, `cap` bounds the weights for drift."""

    loss: Loss
    beta: float
    cap: float | None

    def of_pass(self, batch: "Batch", logps: Any, old: Any, entropies: Any) -> tuple[Any, Any]:
        """The loss of a pass, a scalar, and its `PassTotals` as one vector.

        `logps` and `entropies` are (rows, tokens), as the batch is, 0 where nothing was sampled; `old` are the
        log-probabilities before the first update of the step, None where it has only one.
        """
        import torch

        before = logps.detach() if old is None else old
        ratio = self._ratio(batch, logps - before)
        advantage, loss = batch.advantages, self.loss
        if loss.clips_weights:
            per_token = -ratio.clamp(max=1 + loss.clip_high).detach() * advantage * logps
            clipped = (ratio > 1 + loss.clip_high) & (advantage > 0)
        else:
            within = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
            per_token = -torch.min(ratio * advantage, within * advantage)
            clipped = ((ratio < 1 - loss.clip_low) & (advantage < 0)) | (
                (ratio > 1 + loss.clip_high) & (advantage > 0)
            )
        drawn = batch.sampled & ~batch.drawn_logps.isnan()
        drift = torch.where(drawn, before - batch.drawn_logps.nan_to_num(), 0.0)
        if self.cap is not None:
            per_token = per_token * drift.exp().clamp(max=self.cap)
        kl = torch.zeros_like(logps)
        if batch.references is not None:
            # The KL of the papers (equation 3) is not weighed by the importance ratio.
            apart = torch.where(batch.sampled, batch.references - logps, 0.0)
            kl = apart.exp() - apart - 1
            per_token = per_token + self.beta * kl
        total = (per_token * batch.weights).sum()
        parts = [total, batch.weights.sum()]
        parts += [(each * batch.weights).sum() for each in (kl, entropies, clipped.float())]
        parts += [drift.abs().sum(), drawn.sum(), drift.abs().amax()]
        return total, torch.stack([part.detach().float() for part in parts])

    def _ratio(self, batch: "Batch", log_ratio: Any) -> Any:
        """The importance ratio of each token, or of its row."""
        if not self.loss.sequence:
            return log_ratio.exp()
        rows = batch.rows.flatten()
        totals = log_ratio.new_zeros(len(batch.lengths)).index_add(
            0, rows, (log_ratio * batch.sampled).flatten()
        )
        tokens = log_ratio.new_zeros(len(batch.lengths)).index_add(
            0, rows, batch.sampled.flatten().to(log_ratio.dtype)
        )
        return (totals / tokens.clamp(min=1.0)).exp()[batch.rows]


def learning_rate(settings: TrainConfig, done: int) -> float:
    """Of the step after `done` ones, as it warms up.

    Already the first one learns: the paper's warm-up, one step of 20, would be spent on rollouts that teach nothing.
    """
    steps = round(settings.warmup_ratio * settings.steps)
    return settings.learning_rate * min(1.0, (done + 1) / max(1, steps))


def check_finite(step: int, loss: float, gradient_norm: float) -> None:
    """Raises TrainingError where the update of a step (from 1) would write NaN into the weights."""
    found = {"loss": loss, "gradient norm": gradient_norm}
    broken = [f"the {name} is {value}" for name, value in found.items() if not math.isfinite(value)]
    if broken:
        raise TrainingError(
            f"step {step}: {' and '.join(broken)}, and no checkpoint has it; lower learning_rate or raise "
            "kl_beta, or look at the rewards and log-probabilities of this step's rollouts, then run the same command "
            "again: it goes on from the last checkpoint"
        )


def check_first_kl(kl: float, base: Path) -> None:
    """Raises TrainingError unless the KL of a first step from M0 is about 0."""
    if not abs(kl) <= MOST_FIRST_KL:
        raise TrainingError(
            f"step 1: the KL to M0 is {kl:.3g}, and training starts from M0: expected 0, at most {MOST_FIRST_KL}; "
            f"the reference is not what {base} holds; see that every process reads the same files there"
        )
