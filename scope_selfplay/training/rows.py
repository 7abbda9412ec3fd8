"""A rollout as training rows: exactly the ids that the policy saw and sampled, and a mask of the sampled ones.

Nothing is decoded and encoded again. A row per rollout exists only where every prompt begins with the previous
prompt and sample; where a family rewrites its history (Qwen3 hides earlier thinking), each turn is a row. Several
rows of one rollout share its advantage and weigh as much as one row would (`loss`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scope_selfplay.base.values import Rollout, RolloutStatus, Turn


@dataclass(frozen=True)
class TrainingRow:
    """`mask` (1: sampled) and `logprobs` (the engine's; NaN: unknown) are as long as `completion_ids`."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class RewardedRollout:
    """One rollout of a step: its rows (none when nothing was sampled) and its reward (None masks it).

    `split`: it became a row per turn although its family writes one conversation.
    """

    rows: Sequence[TrainingRow]
    reward: float | None
    truncated: bool = False
    split: bool = False


def rewarded_rollout(rollout: Rollout, reward: float | None, *, per_turn: bool) -> RewardedRollout:
    """The rows that a rollout is trained on, with its reward."""
    rows = rows_from(rollout, per_turn=per_turn)
    split = len(rows) > 1 and not per_turn
    return RewardedRollout(rows, reward, rollout.status is RolloutStatus.TRUNCATED, split)


def rows_from(rollout: Rollout, *, per_turn: bool = False) -> list[TrainingRow]:
    """One row for the whole rollout where its prompts continue each other, else one row per turn.

    `per_turn` asks for a row per turn in any case: a family that drops earlier thinking.
    """
    turns = [turn for turn in rollout.turns if turn.ids]
    if not turns:
        return []
    whole = all(continues(before, after) for before, after in pairwise(turns))
    if whole and not per_turn:
        return [_joined(turns)]
    return [_joined([turn]) for turn in turns]


def continues(before: Turn, after: Turn) -> bool:
    """Whether a turn's prompt begins with everything that the turn before it saw and sampled."""
    seen = before.prompt_ids + before.ids
    return after.prompt_ids[: len(seen)] == seen


def _joined(turns: Sequence[Turn]) -> TrainingRow:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    start = len(turns[0].prompt_ids)
    for turn in turns:
        between = turn.prompt_ids[start + len(ids) :]
        ids += [*between, *turn.ids]
        mask += [0] * len(between) + [1] * len(turn.ids)
        logprobs += [0.0] * len(between) + list(turn.logprobs or [math.nan] * len(turn.ids))
    return TrainingRow(list(turns[0].prompt_ids), ids, mask, logprobs)
