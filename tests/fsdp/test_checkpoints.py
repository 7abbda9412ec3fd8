"""Checkpoints of a sharded training: each rank writes its part, the leader alone reads them, and nothing is lost."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.training.checkpoint import PARTS, Checkpoints
from scope_selfplay.training.ranks import PeerEnded, Ranks
from scope_selfplay.training.rows import RewardedRollout
from tests.fsdp.place import Place, on_ranks
from tests.fsdp.trainings import sharded_job, trained_metrics, weights_on_disk
from tests.integration.loop.seam import Score, by_member

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


class Killed(Exception):
    pass


def killed_in(step: int) -> Score:
    def score(record: str, member: int, now: int) -> RewardedRollout:
        if now == step:
            raise Killed
        return by_member(record, member, now)

    return score


def resumed_and_whole(place: Place) -> dict[str, Any]:
    """Four steps at one go, and again with a kill in the third step."""
    whole = sharded_job(place, "whole", steps=4)
    lines = trained_metrics(whole)
    killed = sharded_job(place, "killed", steps=4)
    with pytest.raises((Killed, PeerEnded)):
        trained_metrics(killed, killed_in(2))
    newest = _newest(killed.folder.work, place.ranks)
    return {
        **newest,
        "weights": sum(weight.numel() for weight in weights_on_disk(place.random_policy).values()),
        "lines": [lines, trained_metrics(killed)],
        "sums": [_sum(whole.folder.checkpoint), _sum(killed.folder.checkpoint)],
    }


def _newest(work: Path, ranks: Ranks) -> dict[str, Any]:
    """The newest checkpoint, what is in it, and which parts this rank has read to see whether it is whole."""
    read: set[str] = set()
    sys.addaudithook(lambda event, told: read.add(Path(str(told[0])).name) if event == "open" else None)
    with ranks:
        step = Checkpoints(work, ranks).restore(dict, print)
    files = [path for path in (work / f"checkpoint-{step}").rglob("*") if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    return {
        "newest": step,
        "sizes": sizes,
        "read": [name for name in sorted(read) if name.endswith(".distcp")],
    }


def _sum(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@on_ranks(resumed_and_whole)
def test_a_killed_training_ends_with_the_same_weights_bit_for_bit(found: list[dict[str, Any]]) -> None:
    for rank in found:
        whole, resumed = rank["sums"]
        assert whole == resumed
        for one, two in zip(*rank["lines"], strict=True):
            names = ("step", "loss", "grad_norm")
            assert [one[name] for name in names] == [two[name] for name in names]


@on_ranks(resumed_and_whole)
def test_every_rank_writes_its_part_and_only_the_leader_reads_them_all(found: list[dict[str, Any]]) -> None:
    leader, other = found
    assert leader["newest"] == other["newest"] == 2
    assert leader["read"] == ["__0_0.distcp", "__1_0.distcp"] and other["read"] == []
    assert set(leader["read"]) < set(leader["sizes"])


@on_ranks(resumed_and_whole)
def test_a_checkpoint_holds_the_weights_once(found: list[dict[str, Any]]) -> None:
    # float32: the weights and Adam's two moments.
    needed = 3 * 4 * found[0]["weights"]
    assert needed <= sum(found[0]["sizes"].values()) < 1.3 * needed + 200_000


def damaged(place: Place) -> dict[str, Any]:
    """A part of the newest checkpoint has changed on disk; the first rank goes by the one before, and so do all."""
    job = sharded_job(place, steps=3)
    with pytest.raises((Killed, PeerEnded)):
        trained_metrics(job, killed_in(2))
    if place.ranks.leads:
        part = job.folder.work / "checkpoint-2" / PARTS / "__1_0.distcp"
        part.write_bytes(part.read_bytes()[:-1] + b"!")
    return {"newest": _newest(job.folder.work, place.ranks)["newest"]}


@on_ranks(damaged)
def test_all_ranks_go_by_the_newest_checkpoint_that_is_whole(found: list[dict[str, Any]]) -> None:
    assert [rank["newest"] for rank in found] == [1, 1]
