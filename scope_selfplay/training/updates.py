"""An update of the weights as the forward passes of this process, with what a token weighs and the loss divides by.

What the loss means is decided over the rollouts of all processes: each tells the others how long its rows are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from scope_selfplay.training.batches import Batch, WeightedRow, pad_rows
from scope_selfplay.training.losses import Mean, loss_divisor, token_weights
from scope_selfplay.training.micro_batches import cut_passes, padding_factor
from scope_selfplay.training.rows import RewardedRollout


class RowSize(NamedTuple):
    """Tokens of a row, those of them that were sampled, and those sampled in all of its rollout."""

    length: int
    sampled: int
    of_rollout: int


@dataclass(frozen=True)
class ShareOfUpdate:
    """What a process tells the others of its part of an update: all its rollouts with the tokens that were sampled in
    them, in all and in the longest, and the rows that are computed.
    """

    rollouts: int
    tokens: int
    longest: int
    rows: Sequence[RowSize]

    @classmethod
    def of(cls, rollouts: Sequence[RewardedRollout], computed: Sequence[RewardedRollout]) -> "ShareOfUpdate":
        sampled = [rollout.sampled_tokens for rollout in rollouts]
        rows = [
            RowSize(row.length, sum(row.mask), rollout.sampled_tokens)
            for rollout in computed
            for row in rollout.rows
        ]
        return cls(len(rollouts), sum(sampled), max(sampled, default=0), rows)


@dataclass(frozen=True)
class Update:
    """`passes` are of this process; `weights`: the share of the loss in each pass, all processes together."""

    passes: Sequence[Batch]
    weights: Sequence[float]
    padding: float


@dataclass(frozen=True)
class UpdateCutter:
    """How rollouts become the passes of an update; `budget`: tokens of a pass, `packed`: rows need no padding."""

    mean: Mean
    budget: int
    packed: bool
    max_response: int
    filler: int
    device: Any

    def cut(
        self,
        rollouts: Sequence[RewardedRollout],
        advantages: Sequence[float],
        shares: Sequence[ShareOfUpdate],
        process: int,
    ) -> Update:
        """The update with the rollouts of this process, number `process` of those that `shares` come from."""
        longest = max(share.longest for share in shares)
        # A process without rows makes its passes with one that counts for nothing.
        lengths = [[row.length for row in share.rows] or [1] for share in shares]
        cuts = cut_passes(lengths, self.budget, packed=self.packed)
        rows = self._weighted_rows(rollouts, advantages, longest)
        divisor = torch.tensor(self._divisor(shares, longest), device=self.device)
        passes = [
            pad_rows([rows[number] for number in numbers if rows], self.filler, self.device)
            | {"num_items_in_batch": divisor}
            for numbers in cuts[process]
        ]
        weights = [
            sum(
                self._loss_weight(share, numbers, longest)
                for share, numbers in zip(shares, together, strict=True)
            )
            for together in zip(*cuts, strict=True)
        ]
        return Update(passes, weights, padding_factor(lengths, cuts, packed=self.packed))

    def _weighted_rows(
        self, rollouts: Sequence[RewardedRollout], advantages: Sequence[float], longest: int
    ) -> list[WeightedRow]:
        lengths = [rollout.sampled_tokens for rollout in rollouts]
        weights = token_weights(self.mean, lengths, longest)
        return [
            WeightedRow(row, advantage, weight)
            for rollout, advantage, weight in zip(rollouts, advantages, weights, strict=True)
            for row in rollout.rows
        ]

    def _divisor(self, shares: Sequence[ShareOfUpdate], longest: int) -> float:
        rollouts = sum(share.rollouts for share in shares)
        tokens = sum(share.tokens for share in shares)
        return loss_divisor(self.mean, rollouts, tokens, longest=longest, budget=self.max_response)

    def _loss_weight(self, share: ShareOfUpdate, numbers: Sequence[int], longest: int) -> float:
        rows = [share.rows[number] for number in numbers if share.rows]
        weights = token_weights(self.mean, [row.of_rollout for row in rows], longest)
        return sum(row.sampled * weight for row, weight in zip(rows, weights, strict=True))
