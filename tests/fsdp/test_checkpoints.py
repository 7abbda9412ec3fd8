"""Checkpoints of a sharded training: each rank writes its part, the leader alone reads them, and nothing is lost."""

import hashlib
import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.store.files import read_rows
from scope_selfplay.training import checkpoints as receipts
from scope_selfplay.training.checkpoints import Checkpoints
from scope_selfplay.training.rows import RewardedRollout
from scope_selfplay.training.termination import Termination
from tests.fsdp.place import Place, name_of, on_ranks, start_ranks
from tests.fsdp.trainings import sharded_job, trained_metrics, trainer_of, weights_on_disk
from tests.integration.loop.seam import by_member

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(600)]


class Killed(Exception):
    pass


def resumed_and_whole(place: Place) -> dict[str, Any]:
    """Four steps at one go, and again with a kill in the third step."""
    whole = sharded_job(replace(place, folder=place.folder / "whole"), steps=4, kl_beta=0.0)
    lines = trained_metrics(whole)

    def kill(record: str, member: int, step: int) -> RewardedRollout:
        if step == 2:
            raise Killed
        return by_member(record, member, step)

    killed = sharded_job(replace(place, folder=place.folder / "killed"), steps=4, kl_beta=0.0)
    with pytest.raises(Killed):
        trained_metrics(killed, kill)
    newest = _newest(trainer_of(killed))
    return {
        **newest,
        "weights": sum(weight.numel() for weight in weights_on_disk(place.random_policy).values()),
        "lines": [lines, trained_metrics(killed)],
        "sums": [_sum(whole.folder.checkpoint), _sum(killed.folder.checkpoint)],
    }


def _newest(trainer: Any) -> dict[str, Any]:
    """The newest checkpoint, what is in it, and how many files this rank has read for it."""
    read: list[str] = []
    checksum, receipts.checksum = receipts.checksum, lambda path: read.append(str(path)) or checksum(path)
    try:
        newest = trainer.newest_checkpoint(lambda line: None)
    finally:
        receipts.checksum = checksum
    sizes = {path.name: path.stat().st_size for path in newest.rglob("*") if path.is_file()}
    return {"newest": newest.name, "sizes": sizes, "read": len(read)}


def _sum(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@on_ranks(resumed_and_whole)
def test_a_killed_training_ends_with_the_same_weights_bit_for_bit(found: list[dict[str, Any]]) -> None:
    for rank in found:
        whole, resumed = rank["sums"]
        assert whole == resumed
        for one, two in zip(*rank["lines"], strict=True):
            assert (one["step"], one["loss"], one["grad_norm"]) == (
                two["step"],
                two["loss"],
                two["grad_norm"],
            )


@on_ranks(resumed_and_whole)
def test_every_rank_writes_its_part_and_only_the_leader_reads_them_all(found: list[dict[str, Any]]) -> None:
    leader, other = found
    assert leader["newest"] == other["newest"] == "checkpoint-2"
    assert {"__0_0.distcp", "__1_0.distcp"} <= set(leader["sizes"])
    assert leader["read"] == len(leader["sizes"]) - 1 and other["read"] == 0


@on_ranks(resumed_and_whole)
def test_a_checkpoint_holds_the_weights_once(found: list[dict[str, Any]]) -> None:
    # float32: the weights and Adam's two moments.
    needed = 3 * 4 * found[0]["weights"]
    assert needed <= sum(found[0]["sizes"].values()) < 1.3 * needed + 200_000


def told_to_stop(place: Place) -> dict[str, Any]:
    """Never returns: its ranks get SIGTERM in mid-step, where one samples and the other waits for it."""

    def slowly(record: str, member: int, step: int) -> RewardedRollout:
        if step == 2 and place.ranks.leads:
            (place.folder / "sampling").touch()
            time.sleep(120)
        return by_member(record, member, step)

    return {"lines": trained_metrics(sharded_job(place, steps=4, kl_beta=0.0), slowly)}


def test_sigterm_in_mid_step_ends_every_rank_within_seconds_and_costs_that_step_alone(
    tmp_path: Path,
) -> None:
    ended: list[float] = []

    def stop_once_sampling() -> None:
        flag = tmp_path / "told_to_stop" / "sampling"
        while not flag.exists():
            time.sleep(0.1)
        ended.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    said: list[str] = []
    threading.Thread(target=stop_once_sampling, daemon=True).start()
    ending = start_ranks([name_of(told_to_stop)], tmp_path, said.append)
    assert ending.code == 143, "\n".join(said[-20:])
    assert time.monotonic() - ended[0] < 20
    work = tmp_path / "told_to_stop" / ".work"
    newest = Checkpoints(work).newest(print)
    assert newest is not None and newest.name == "checkpoint-2"
    assert [row["step"] for row in read_rows(tmp_path / "told_to_stop" / "metrics.jsonl")] == [1, 2]


def told_when_complete(place: Place) -> dict[str, Any]:
    """Never returns: one rank alone gets SIGTERM when the third step is complete, and no step was to be saved."""
    hold, complete = Termination.hold, itertools.count(1)

    def told(self: Termination) -> None:
        hold(self)
        if next(complete) == 3 and not place.ranks.leads:
            os.kill(os.getpid(), signal.SIGTERM)

    Termination.hold = told  # type: ignore[method-assign]
    return {"lines": trained_metrics(sharded_job(place, steps=4, save_every=4, kl_beta=0.0))}


def test_every_rank_saves_a_complete_step_when_sigterm_has_reached_one(tmp_path: Path) -> None:
    said: list[str] = []
    ending = start_ranks([name_of(told_when_complete)], tmp_path, said.append)
    assert ending.code == 143, "\n".join(said[-20:])
    newest = Checkpoints(tmp_path / "told_when_complete" / ".work").newest(print)
    assert newest is not None and newest.name == "checkpoint-3"
