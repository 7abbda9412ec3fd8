"""Rollouts as the tensors of one training step: padded rows, each with its rollout's advantage and weight.

Left of a row is padding, then its prompt; right of it the completion, then padding. `tool_mask` is TRL's name for
what sampled tokens are: here it also carries what a token weighs, 0 for what the policy did not sample.

The engine that sampled and the model that is trained have the same weights, other kernels and precision: where their
log-probabilities differ, the update is not quite on policy. That drift is measured in every step, and can be weighed
by the capped ratio of both (truncated importance sampling).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from scope_selfplay.training.rows import RewardedRollout, TrainingRow

Batch = dict[str, Any]


def pad_rows(rows: Sequence[tuple[TrainingRow, float, float]], count: int, filler: int, device: Any) -> Batch:
    """`count` rows, longest first; those that are missing are filled up with rows that weigh nothing.

    `rows` are (row, advantage, weight of a sampled token). Tensors are (count, longest prompt) or (count, longest
    completion); advantages are (count,).
    """
    nothing = (TrainingRow([filler], [filler], [0], [0.0]), 0.0, 0.0)
    laid = sorted([*rows, *[nothing] * (count - len(rows))], key=lambda weighed: -weighed[0].length)
    before = max(len(row.prompt_ids) for row, _, _ in laid)
    after = max(len(row.completion_ids) for row, _, _ in laid)

    def prompts(value: int | None) -> Any:
        """The ids, or `value` where a prompt is and 0 elsewhere."""
        lines = []
        for row, _, _ in laid:
            ids = row.prompt_ids
            empty = filler if value is None else 0
            lines.append([empty] * (before - len(ids)) + (ids if value is None else [value] * len(ids)))
        return torch.tensor(lines, device=device)

    def completions(lines: list[list[Any]], empty: Any, kind: Any = torch.long) -> Any:
        padded = [line + [empty] * (after - len(line)) for line in lines]
        return torch.tensor(padded, dtype=kind, device=device)

    weights = [[weight * mask for mask in row.mask] for row, _, weight in laid]
    return {
        "prompt_ids": prompts(None),
        "prompt_mask": prompts(1),
        "completion_ids": completions([row.completion_ids for row, _, _ in laid], filler),
        "completion_mask": completions([[1] * len(row.completion_ids) for row, _, _ in laid], 0),
        "tool_mask": completions(weights, 0.0, torch.float32),
        "sampling_per_token_logps": completions([row.logprobs for row, _, _ in laid], 0.0, torch.float32),
        "advantages": torch.tensor([advantage for _, advantage, _ in laid], device=device),
    }


def row_slices(batch: Batch, size: int) -> Iterator[Batch]:
    """`batch` in parts of `size` rows, each without the columns that are padding in all of its rows."""
    for start in range(0, len(batch["advantages"]), size):
        part = {
            name: value[start : start + size] if getattr(value, "ndim", 0) else value
            for name, value in batch.items()
        }
        first = int(part["prompt_mask"].any(dim=0).int().argmax())
        last = int(part["completion_mask"].any(dim=0).sum())
        for name, value in part.items():
            if getattr(value, "ndim", 0) > 1:
                part[name] = value[:, first:] if name.startswith("prompt_") else value[:, :last]
        yield part


def stack_parts(values: Sequence[Any], width: int) -> Any:
    """Parts of different widths under each other again, (rows, width)."""
    return torch.cat([pad(part, (0, width - part.size(1))) for part in values])


def trl_columns(rollouts: Sequence[RewardedRollout], filler: int) -> dict[str, Any]:
    """One sample per rollout for TRL's own metrics: all that was sampled behind the first prompt."""
    samples = [_sample(rollout.rows, filler) for rollout in rollouts]
    return {
        "prompt_ids": [row.prompt_ids for row in samples],
        "completion_ids": [row.completion_ids for row in samples],
        "logprobs": [row.logprobs for row in samples],
        "env_mask": [row.mask for row in samples],
        "given_reward": [rollout.reward if rollout.rows else None for rollout in rollouts],
    }


def _sample(rows: Sequence[TrainingRow], filler: int) -> TrainingRow:
    # TRL needs a token everywhere; a rollout that sampled nothing gets one that is masked out.
    if not rows:
        return TrainingRow([filler], [filler], [0], [0.0])
    return TrainingRow(
        rows[0].prompt_ids,
        [token for row in rows for token in row.completion_ids],
        [sampled for row in rows for sampled in row.mask],
        [logprob for row in rows for logprob in row.logprobs],
    )


def logprob_drift(logps: Any, part: Batch) -> Any:
    """Trained minus sampled log-probability, (rows, completion); 0 where nothing was sampled or the engine gave NaN."""
    sampled = part["tool_mask"] > 0
    difference = (logps.float() - part["sampling_per_token_logps"]).nan_to_num(nan=0.0)
    return torch.where(sampled, difference, 0.0)


class SamplingDrift:
    """Collects a step's differences over its passes, and over the processes when it is asked for them."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._found: list[Any] = []

    def add(self, difference: Any, sampled: Any) -> None:
        """`difference` as `logprob_drift` gives it; `sampled` are the tokens that count."""
        size = difference.abs()
        self._found.append(torch.stack([size.sum(), sampled.sum().float(), size.amax()]))

    def metrics(self) -> dict[str, float]:
        """Of the step that ends: mean and greatest absolute difference. A collective call: all processes make it."""
        if not self._found:
            return {}
        own = torch.stack(self._found)
        self._found = []
        own = torch.cat([own[:, :2].sum(dim=0), own[:, 2].amax().view(1)])
        everyone = self._accelerator.gather(own).view(-1, 3)
        total, tokens = (float(total) for total in everyone[:, :2].sum(dim=0))
        if not tokens:
            return {}
        return {"sampling_drift": total / tokens, "sampling_drift_max": float(everyone[:, 2].amax())}
