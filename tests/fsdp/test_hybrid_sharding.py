"""Two nodes that hold a copy each, shared by the node's GPUs, train what one process trains.

One process and two times two run the same cases, one launch after the other.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.launch import TrainingNode
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.passes import RewardedRollout
from scope_selfplay.training.ranks import PeerEnded
from tests.fsdp.place import Found, Place, found_by, offloading, sharded_job, weights_on_disk
from tests.integration.loop.seam import Killed, by_member, killed_in, loop_of, trained_metrics

pytestmark = pytest.mark.fsdp

STEPS, GROUPS, CUT = 4, 4, 2
HYBRID = TrainingNode(2, 2, sharding="hybrid").sharers
GRADIENTS = "gradients.safetensors"


def four_groups(place: Place, **settings: Any) -> GrpoJob:
    """A step's eight rollouts, each in a pass of its own: two for each of four ranks."""
    job = sharded_job(place, **{"kl_beta": 0.01, "clip_norm": 1e3, **settings})
    taken = job.settings.model_copy(update={"batch": GROUPS, "steps": STEPS})
    records = [f"t{row}" for row in range(GROUPS * STEPS)]
    # Masters as they are: M0's own files may be rounded.
    model = job.model.model_copy(update={"export_dtype": "float32"})
    return replace(job, settings=taken, model=model, records=records)


def lines_of(job: GrpoJob, score: Any = by_member) -> list[list[float]]:
    return [
        [line[name] for name in ("loss", "grad_norm", "kl", "reward")] for line in trained_metrics(job, score)
    ]


def all_steps(place: Place) -> dict[str, Any]:
    return {"lines": lines_of(four_groups(place))}


def adapter_steps(place: Place) -> dict[str, Any]:
    return {"lines": lines_of(four_groups(place, learning_rate=1e-2, lora=True))}


def first_gradients(place: Place) -> dict[str, Any]:
    """Written whole, as the optimizer gets them in the first step; how weights are shared."""
    from safetensors.torch import save_file

    sums = list[float]()
    with place.ranks:
        loop = loop_of(four_groups(place))
        trained = loop.model.trained

        def keep() -> None:
            whole = {name: weight.grad.full_tensor() for name, weight in trained.items()}
            sums.append(float(sum(gradient.double().abs().sum() for gradient in whole.values())))
            if place.ranks.leads:
                save_file(whole, place.folder / GRADIENTS)

        loop.optimizer.step = keep
        loop.step(0)
    return {
        "mesh": list(next(iter(trained.values())).device_mesh.shape),
        "own": sum(weight.to_local().numel() for weight in trained.values()),
        "whole": sum(weight.numel() for weight in trained.values()),
        "sum": sums[0],
    }


def cut_short(place: Place) -> dict[str, Any]:
    """Killed in the third step: its folder is where another launch goes on."""
    with pytest.raises((Killed, PeerEnded)):
        trained_metrics(four_groups(place), killed_in(CUT))
    return {}


def gone_on(place: Place) -> dict[str, Any]:
    """From what `cut_short` of the other launch left; only the last two steps are asked for."""
    begun: set[int] = set()

    def noted(record: str, member: int, step: int) -> RewardedRollout:
        begun.add(step)
        return by_member(record, member, step)

    return {"lines": lines_of(four_groups(place), noted), "begun": sorted(begun)}


def kept_on_the_host(place: Place) -> dict[str, Any]:
    with offloading():
        return all_steps(place)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory, forks: list[str]) -> dict[str, tuple[Path, Found]]:
    """What one process and two nodes with a copy each have found, and where it lies."""
    one, hybrid = (tmp_path_factory.mktemp(name) for name in ("one", "hybrid"))
    cases = (all_steps, adapter_steps, first_gradients, cut_short)
    alone = found_by(forks, cases, one, ranks=1)
    shutil.copytree(one / "cut_short", hybrid / "gone_on")
    shared = found_by(forks, [*cases, gone_on, kept_on_the_host], hybrid, ranks=4, sharers=HYBRID)
    shutil.copytree(hybrid / "cut_short", one / "gone_on")
    alone |= found_by(forks, [gone_on], one, ranks=1)
    return {"one": (one, alone), "hybrid": (hybrid, shared)}


def furthest(one: dict[str, Any], two: dict[str, Any]) -> float:
    assert one.keys() == two.keys() and one
    return max(float((one[name] - two[name]).abs().max()) for name in one)


Launches = dict[str, tuple[Path, Found]]


def weights_of(launches: Launches, name: str, case: str) -> dict[str, Any]:
    return weights_on_disk(launches[name][0] / case / "checkpoint")


@pytest.mark.parametrize(("name", "mesh"), [("one", [1]), ("hybrid", [2, 2])])
def test_a_gpu_holds_a_share_of_its_nodes_copy(launches: Launches, name: str, mesh: list[int]) -> None:
    for rank in launches[name][1]["first_gradients"]:
        assert rank["mesh"] == mesh
        assert rank["own"] == pytest.approx(rank["whole"] / mesh[-1], rel=0.01)


def test_gradients_weights_and_metrics_are_those_of_one_process(launches: Launches) -> None:
    from safetensors.torch import load_file

    (one, alone), (hybrid, shared) = launches.values()
    ours, theirs = (load_file(folder / "first_gradients" / GRADIENTS) for folder in (hybrid, one))
    assert furthest(ours, theirs) < 1e-7 < 0.1 < max(float(each.abs().max()) for each in theirs.values())
    assert len({rank["sum"] for rank in shared["first_gradients"]}) == 1
    start = weights_on_disk(one / "policies" / "random")
    for case in ("all_steps", "adapter_steps"):
        ours, theirs = (weights_of(launches, name, case) for name in ("hybrid", "one"))
        assert furthest(ours, theirs) < 1e-7 < 1e-3 < furthest(ours, start)
        for rank in shared[case]:
            for line, wanted in zip(rank["lines"], alone[case][0]["lines"], strict=True):
                assert line == pytest.approx(wanted, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ["hybrid", "one"])
def test_a_training_goes_on_from_the_checkpoint_of_another_sharding(launches: Launches, name: str) -> None:
    assert all(rank["begun"] == [CUT, CUT + 1] for rank in launches[name][1]["gone_on"])
    whole = weights_of(launches, "one", "all_steps")
    assert furthest(weights_of(launches, name, "gone_on"), whole) < 1e-7


def test_a_copy_in_host_memory_learns_the_same(launches: Launches) -> None:
    """The settings of nodes with two GPUs."""
    ours, whole = (
        weights_of(launches, *place) for place in (("hybrid", "kept_on_the_host"), ("one", "all_steps"))
    )
    assert furthest(ours, whole) < 1e-7
