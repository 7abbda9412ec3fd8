"""Trajectories as the tensors of one training step: padded rows, each with its trajectory's advantage and weight.

Left of a row is padding, then its prompt; right of it the completion, then padding. `tool_mask` is TRL's name for
what sampled tokens are: here it also carries what a token weighs, 0 for what the policy did not sample.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from scope_selfplay.training.rows import TrainingRow

Batch = dict[str, Any]


class WeighedRow(NamedTuple):
    row: TrainingRow
    advantage: float
    weight: float

    @property
    def length(self) -> int:
        return len(self.row.prompt_ids) + len(self.row.completion_ids)


def lay_out(rows: Sequence[WeighedRow], count: int, filler: int, device: Any) -> Batch:
    """`count` rows, longest first; those that are missing are filled up with rows that weigh nothing.

    Tensors are (count, longest prompt) or (count, longest completion); advantages are (count,).
    """
    nothing = WeighedRow(TrainingRow([filler], [filler], [0], [0.0]), 0.0, 0.0)
    laid = sorted([*rows, *[nothing] * (count - len(rows))], key=lambda each: -each.length)
    before = max(len(each.row.prompt_ids) for each in laid)
    after = max(len(each.row.completion_ids) for each in laid)

    def prompts(value: int | None) -> Any:
        """The ids, or `value` where a prompt is and 0 elsewhere."""
        lines = []
        for each in laid:
            ids = each.row.prompt_ids
            empty = filler if value is None else 0
            lines.append([empty] * (before - len(ids)) + (ids if value is None else [value] * len(ids)))
        return torch.tensor(lines, device=device)

    def completions(lines: list[list[Any]], empty: Any, kind: Any = torch.long) -> Any:
        padded = [line + [empty] * (after - len(line)) for line in lines]
        return torch.tensor(padded, dtype=kind, device=device)

    weights = [[each.weight * mask for mask in each.row.mask] for each in laid]
    return {
        "prompt_ids": prompts(None),
        "prompt_mask": prompts(1),
        "completion_ids": completions([each.row.completion_ids for each in laid], filler),
        "completion_mask": completions([[1] * len(each.row.completion_ids) for each in laid], 0),
        "tool_mask": completions(weights, 0.0, torch.float32),
        "sampling_per_token_logps": completions([each.row.logprobs for each in laid], 0.0, torch.float32),
        "advantages": torch.tensor([each.advantage for each in laid], device=device),
    }


def slices(batch: Batch, size: int) -> Iterator[Batch]:
    """`batch` in parts of `size` rows, each without the columns that are padding in all of its rows."""
    for start in range(0, len(batch["advantages"]), size):
        part = {
            name: value[start : start + size] if getattr(value, "ndim", 0) else value
            for name, value in batch.items()
        }
        first = int(part["prompt_mask"].any(dim=0).int().argmax())
        last = int(part["completion_mask"].any(dim=0).sum())
        yield {name: _trimmed(name, value, first, last) for name, value in part.items()}


def _trimmed(name: str, value: Any, first: int, last: int) -> Any:
    if getattr(value, "ndim", 0) < 2:
        return value
    return value[:, first:] if name.startswith("prompt_") else value[:, :last]


def widened(values: Sequence[Any], width: int) -> Any:
    """Parts of different widths under each other again, (rows, width)."""
    return torch.cat([pad(each, (0, width - each.size(1))) for each in values])
