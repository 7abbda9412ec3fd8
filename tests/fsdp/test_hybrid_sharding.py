"""Two nodes that hold a copy each, shared by the node's GPUs, train what four GPUs and what one process train.

One process, four that share one copy, and two times two run the same cases, one launch after the other.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.launch import TrainingNode
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import PeerEnded
from scope_selfplay.training.rows import RewardedRollout
from tests.fsdp.place import Case, Place, name_of, offloading, start_ranks
from tests.fsdp.test_checkpoints import Killed, killed_in
from tests.fsdp.trainings import loop_of, sharded_job, trained_metrics, weights_on_disk
from tests.integration.loop.seam import by_member

pytestmark = [pytest.mark.fsdp, pytest.mark.timeout(900)]

STEPS, GROUPS, CUT = 4, 4, 2
HYBRID = TrainingNode(2, 2, sharding="hybrid").sharers
GRADIENTS = "gradients.safetensors"
Found = list[dict[str, Any]]
Launches = dict[str, tuple[Path, dict[str, Found]]]


def four_groups(place: Place, **settings: Any) -> GrpoJob:
    """A step's eight rollouts, each in a pass of its own: two for each of four ranks."""
    job = sharded_job(place, **{"kl_beta": 0.01, "clip_norm": 1e3, **settings})
    taken = job.settings.model_copy(update={"batch": GROUPS, "steps": STEPS})
    records = [f"t{row}" for row in range(GROUPS * STEPS)]
    # Masters as they are: M0's own files may be rounded.
    model = job.options.model.model_copy(update={"export_dtype": "float32"})
    return replace(job, options=replace(job.options, settings=taken, model=model), records=records)


def lines_of(job: GrpoJob, score: Any = by_member) -> list[list[float]]:
    return [
        [line[name] for name in ("loss", "grad_norm", "kl", "reward")] for line in trained_metrics(job, score)
    ]


def all_steps(place: Place) -> dict[str, Any]:
    return {"lines": lines_of(four_groups(place))}


def adapter_steps(place: Place) -> dict[str, Any]:
    job = four_groups(place, learning_rate=1e-2, lora=True)
    return {"lines": lines_of(job)}


def first_gradients(place: Place) -> dict[str, Any]:
    """Written whole, as the optimizer gets them in the first step; how weights are shared; what nodes exchange."""
    import torch.distributed
    from safetensors.torch import save_file
    from torch.distributed.fsdp import FSDPModule

    reduced, sums, all_reduce = list[int](), list[float](), torch.distributed.all_reduce

    def counted(tensor: Any, *arguments: Any, **options: Any) -> Any:
        reduced.append(tensor.numel())
        return all_reduce(tensor, *arguments, **options)

    with place.ranks:
        loop = loop_of(four_groups(place))
        trained = loop.model.trained

        def keep() -> None:
            whole = {name: weight.grad.full_tensor() for name, weight in trained.items()}
            sums.append(float(sum(gradient.double().abs().sum() for gradient in whole.values())))
            if place.ranks.leads:
                save_file(whole, place.folder / GRADIENTS)

        loop.optimizer.step = keep
        torch.distributed.all_reduce = counted
        try:
            loop.step(0)
        finally:
            torch.distributed.all_reduce = all_reduce
    return {
        "mesh": list(next(iter(trained.values())).device_mesh.shape),
        "own": sum(weight.to_local().numel() for weight in trained.values()),
        "whole": sum(weight.numel() for weight in trained.values()),
        "reduced": reduced,
        "sum": sums[0],
        "units": sum(isinstance(module, FSDPModule) for module in loop.model.model.modules()),
    }


def cut_short(place: Place) -> dict[str, Any]:
    """Killed in the third step: its folder is where another launch goes on."""
    with pytest.raises((Killed, PeerEnded)):
        trained_metrics(four_groups(place), killed_in(CUT))
    return {}


def gone_on(place: Place) -> dict[str, Any]:
    """From what `cut_short` left, here or in another launch; only the last two steps are asked for."""
    begun: list[int] = []

    def noted(record: str, member: int, step: int) -> RewardedRollout:
        begun.append(step)
        return by_member(record, member, step)

    return {"lines": lines_of(four_groups(place), noted), "begun": sorted(set(begun))}


def kept_on_the_host(place: Place) -> dict[str, Any]:
    with offloading():
        return all_steps(place)


CASES = (all_steps, adapter_steps, first_gradients)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory, forks: list[str]) -> Launches:
    """What one process, two nodes with a copy each and four that share one have found, and where it lies."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("one", "hybrid", "full")}

    def launched(name: str, cases: Sequence[Case], ranks: int, sharers: int) -> dict[str, Found]:
        folder, said = folders[name], list[str]()
        told = list(map(name_of, cases))
        ending = start_ranks(forks, told, folder, said.append, ranks=ranks, sharers=sharers)
        assert ending.code == 0, "\n".join(said[-40:])
        return {
            case.__name__: [
                json.loads((folder / case.__name__ / f"rank-{rank}.json").read_text())
                for rank in range(ranks)
            ]
            for case in cases
        }

    def begun_by(other: str, name: str) -> None:
        shutil.copytree(folders[other] / "cut_short", folders[name] / "gone_on")

    one = launched("one", [*CASES, cut_short], 1, 1)
    begun_by("one", "hybrid")
    hybrid = launched("hybrid", [*CASES, cut_short, gone_on, kept_on_the_host], 4, HYBRID)
    begun_by("hybrid", "full")
    full = launched("full", [*CASES, gone_on], 4, 4)
    return {name: (folders[name], found) for name, found in zip(folders, (one, hybrid, full), strict=True)}


def furthest(one: dict[str, Any], two: dict[str, Any]) -> float:
    assert one.keys() == two.keys() and one
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def found_by(launches: Launches, name: str, case: Case) -> Found:
    return launches[name][1][case.__name__]


def weights_of(launches: Launches, name: str, case: Case) -> dict[str, Any]:
    return weights_on_disk(launches[name][0] / case.__name__ / "checkpoint")


@pytest.mark.parametrize(("name", "mesh"), [("one", [1]), ("hybrid", [2, 2]), ("full", [4])])
def test_a_gpu_holds_a_share_among_those_that_share_a_copy(
    launches: Launches, name: str, mesh: list[int]
) -> None:
    ranks = found_by(launches, name, first_gradients)
    assert [rank["mesh"] for rank in ranks] == [mesh] * len(ranks)
    assert all(rank["own"] == pytest.approx(rank["whole"] / mesh[-1], rel=0.01) for rank in ranks)


def test_nodes_exchange_a_share_of_the_gradients_once_in_an_update_of_two_passes(launches: Launches) -> None:
    for name in ("one", "hybrid", "full"):
        ranks = found_by(launches, name, first_gradients)
        # Shares are filled up to equal sizes before they travel.
        share = max(rank["own"] for rank in ranks) if name == "hybrid" else 0
        for rank in ranks:
            assert sum(rank["reduced"]) == share


@pytest.mark.parametrize("other", ["one", "full"])
def test_gradients_are_those_of_one_process_and_of_full_sharding(launches: Launches, other: str) -> None:
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(launches[name][0] / first_gradients.__name__ / GRADIENTS) for name in ("hybrid", other)
    )
    assert max(float(gradient.abs().max()) for gradient in theirs.values()) > 0.1
    assert furthest(ours, theirs) < 1e-7
    assert len({rank["sum"] for rank in found_by(launches, "hybrid", first_gradients)}) == 1


@pytest.mark.parametrize("case", [all_steps, adapter_steps])
@pytest.mark.parametrize("other", ["one", "full"])
def test_weights_and_metrics_are_those_of_one_process_and_of_full_sharding(
    launches: Launches, other: str, case: Case
) -> None:
    ours, theirs = (weights_of(launches, name, case) for name in ("hybrid", other))
    start = weights_on_disk(launches["one"][0] / "policies" / "random")
    assert furthest(ours, theirs) < 1e-7 < 1e-3 < furthest(ours, start)
    for rank in found_by(launches, "hybrid", case):
        for line, expected in zip(rank["lines"], found_by(launches, other, case)[0]["lines"], strict=True):
            assert line == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ["hybrid", "full"])
def test_a_training_goes_on_from_the_checkpoint_of_another_sharding(launches: Launches, name: str) -> None:
    """Two nodes from that of one process, and four GPUs that share one copy from that of the two nodes."""
    assert all(rank["begun"] == [CUT, CUT + 1] for rank in found_by(launches, name, gone_on))
    whole = weights_of(launches, "one", all_steps)
    assert furthest(weights_of(launches, name, gone_on), whole) < 1e-7


def test_a_copy_in_host_memory_learns_the_same(launches: Launches) -> None:
    """The settings of nodes with two GPUs."""
    assert (
        furthest(weights_of(launches, "hybrid", kept_on_the_host), weights_of(launches, "one", all_steps))
        < 1e-7
    )
