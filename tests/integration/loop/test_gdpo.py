"""GDPO's advantages are those that TRL computes from several objectives (`normalize_then_sum`)."""

import random

import torch
from trl.trainer.utils import nanstd

from scope_selfplay.rewards.equations import summed_objectives
from scope_selfplay.training.loss import AdvantageScale, advantages

GROUPS, SIZE = 3, 4


def test_advantages_are_those_of_trl() -> None:
    rng = random.Random(4)
    values = torch.tensor([[rng.random() * width for width in (1, 10, 0.1)] for _ in range(GROUPS * SIZE)])
    weights = torch.tensor([3.0, 2.0, 1.0])
    # TRL 1.16, GRPOTrainer, multi_objective_aggregation="normalize_then_sum".
    grouped = values.view(GROUPS, SIZE, 3)
    own = (grouped - grouped.nanmean(dim=1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    sums = (own.view(-1, 3) * weights / weights.sum()).nansum(dim=1)
    expected = (sums - sums.nanmean()) / (nanstd(sums) + 1e-4)
    rewards = [summed_objectives(group.T.tolist(), weights.tolist()) for group in grouped]
    found = torch.tensor(advantages(rewards, AdvantageScale.STEP)).flatten()
    # TRL's deviations are those of a sample, ours of the population.
    factor = ((GROUPS * SIZE - 1) / (GROUPS * SIZE)) ** 0.5
    assert torch.allclose(factor * found, expected, atol=1e-3)
