"""Log-probabilities of M0 for the rollouts of a step that are still judged: the trainer's GPU would wait otherwise.

They need no rewards. Which rows count is decided by these, so all rows are scored, in passes of their own, and take
what was found with them into the update (`TrainingRow.reference`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object

from scope_selfplay.training.batches import WeightedRow, pad_rows
from scope_selfplay.training.micro_batches import cut_passes
from scope_selfplay.training.rows import RewardedRollout, TrainingRow


def reference_of(trainer: Any, rollouts: Sequence[RewardedRollout], budget: int) -> list[list[float]]:
    """Row by row, for passes of `budget` tokens. A collective call: all processes make as many passes."""
    rows = [row for rollout in rollouts for row in rollout.rows]
    lengths = gather_object([[row.length for row in rows] or [1]])
    passes = cut_passes(lengths, budget, packed=trainer.packed)[trainer.accelerator.process_index]
    found: list[list[float]] = [[] for _ in rows]
    with trainer.reference.model() as model:
        for numbers in passes:
            chosen = [WeightedRow(rows[number], 0.0, 1.0) for number in numbers if rows]
            part = pad_rows(chosen, trainer._tokenizer.pad_token_id, trainer.accelerator.device)
            logps = trainer.logps_of(model, part).tolist()
            for number, line in zip(numbers if rows else (), logps, strict=False):
                found[number] = line[: len(rows[number].completion_ids)]
    return found


def referred(
    rollouts: Sequence[RewardedRollout], references: Sequence[Sequence[float]]
) -> list[RewardedRollout]:
    """The same rollouts, with their rewards, whose rows know the references that were found without these."""
    known = iter(references)

    def with_reference(row: TrainingRow) -> TrainingRow:
        reference = list(next(known))
        assert len(reference) == len(row.completion_ids), (
            "the rewarded rollouts are others than the sampled ones"
        )
        return replace(row, reference=reference)

    found = [replace(each, rows=[with_reference(row) for row in each.rows]) for each in rollouts]
    assert next(known, None) is None, "fewer rollouts were rewarded than sampled"
    return found
