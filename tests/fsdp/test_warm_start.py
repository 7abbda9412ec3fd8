"""A cold start sharded as GRPO is, in two ranks."""

from typing import Any

import pytest

from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.store.card import Lineage
from scope_selfplay.training.rows import TrainingRow
from scope_selfplay.training.sft import WarmStart, sft
from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import weights_on_disk

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


def cold_start(place: Place) -> dict[str, Any]:
    rows = [TrainingRow([40, 41, 42 + n % 2], [60, 61, 62], [1, 0, 1], [0.0] * 3) for n in range(4)]
    out = place.folder / "m0"
    losses = sft(
        rows,
        place.random_policy,
        out,
        settings=WarmStart(epochs=3, learning_rate=1e-2, batch=4, micro_batch=1),
        codec=ChatCodec.load(place.random_policy),
        lineage=Lineage(role="warm start"),
        team=place.ranks,
    )
    before, after = weights_on_disk(place.random_policy), weights_on_disk(out)
    changed = [name for name in before if not before[name].equal(after[name])]
    whole = all(before[name].shape == after[name].shape for name in before)
    return {"losses": losses, "changed": changed, "whole": whole, "plain": policy_path(str(out)) == out}


@on_ranks(cold_start)
def test_two_ranks_learn_from_the_same_trajectories_and_write_one_model(found: list[dict[str, Any]]) -> None:
    one, two = found
    assert one == two and one["whole"] and one["plain"] and one["changed"]
    # Three epochs of four rows, four rows a step.
    assert len(one["losses"]) == 3 and one["losses"][-1] < one["losses"][0]
