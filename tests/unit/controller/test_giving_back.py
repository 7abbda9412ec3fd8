"""Runs that need the same GPUs: nobody waits for ever, and nothing holds what it cannot use."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver import plan, waiting
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.testing.fake_nodes import GPU
from tests.unit.controller.neighbours import Neighbours
from tests.unit.controller.worlds import World

CONDITION = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes match a selector."}
UNPLACED = {"phase": "Pending", "conditions": [CONDITION]}
LAST_TWO = ("i01-train-solver", "i01-compare")


@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.integration)])
def test_runs_on_one_node_all_finish_and_its_gpus_are_idle_for_a_minute_at_most(
    tmp_path: Path, count: int
) -> None:
    """Judge and Solver of two runs take all eight GPUs: alone, each would wait for the other's for ever. Idle is when
    no stage works; what is left of it is servers that end and start between two stages."""
    neighbours = Neighbours(tmp_path, count)
    neighbours.drive(hours=3)
    assert set(neighbours.ended.values()) == {ExitCode.DONE}
    for name, stages in neighbours.stages.items():
        assert len(stages.published) == len(set(stages.published)) == 6, name
    assert neighbours.idle <= 60
    # Nothing was held in vain for so long that a run had to give up.
    assert "GaveBack" not in neighbours.world.reasons
    assert "MadeWay" in neighbours.world.reasons


def test_the_younger_run_makes_way_but_not_for_ever(tmp_path: Path) -> None:
    """What the older one waits for may be something that this run cannot give."""
    neighbours = Neighbours(tmp_path, 2)
    world = neighbours.world
    world.nodes.leaves_alone = lambda name: name.startswith("r1-judge")
    for name in neighbours.controllers:
        neighbours.controllers[name].round()
        world.cluster.advance(15)
    (judge,) = [
        pod for name, pod in world.cluster.objects(ObjectKind.POD).items() if name.startswith("r1-judge")
    ]
    judge["status"] = UNPLACED
    with pytest.raises(AssertionError):
        neighbours.drive(hours=0.2)
    assert neighbours.messages()["r2"] == "makes way for r1, which came first and waits for a node"
    assert not [name for name in world.cluster.objects(ObjectKind.DEPLOYMENT) if name.startswith("r2-")]
    with pytest.raises(AssertionError):
        neighbours.drive(hours=1)
    assert neighbours.ended == {"r2": ExitCode.DONE}


def test_a_run_that_can_never_be_placed_keeps_the_younger_one_for_its_patience_alone(tmp_path: Path) -> None:
    """It holds nothing, so it never gives back: all its pods ask for a node that is not there."""
    neighbours = Neighbours(tmp_path, 2)
    cluster = neighbours.world.cluster
    neighbours.world.nodes.leaves_alone = lambda name: name.startswith("r1-")
    for _ in range(4 * 60 * 3):
        for name, pod in cluster.objects(ObjectKind.POD).items():
            if name.startswith("r1-"):
                pod["status"] = UNPLACED
        for name, controller in neighbours.controllers.items():
            if name not in neighbours.ended and (end := controller.round()) is not None:
                neighbours.ended[name] = end.code
        cluster.advance(15)
    assert neighbours.ended == {"r2": ExitCode.DONE}


@pytest.mark.integration
def test_a_run_that_gave_back_returns_as_soon_as_its_neighbours_hold_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs whose stages take far longer than their patience: pauses must not outlast the stages of others."""
    monkeypatch.setattr(waiting, "PATIENCE", 120)
    neighbours = Neighbours(tmp_path, 3)
    neighbours.world.nodes.seconds = 600
    neighbours.drive(hours=3)
    assert set(neighbours.ended.values()) == {ExitCode.DONE}
    assert "GaveBack" in neighbours.world.reasons
    assert "found no room for all its pods within" in neighbours.world.messages
    assert neighbours.idle <= 90


def test_giving_back_costs_no_retry_and_no_number_is_used_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 0)
    world = World(tmp_path, only=LAST_TWO)
    world.nodes.gpus = 3
    controller = world.controller()
    world.go(controller, 7500, step=15)
    assert world.reasons.count("GaveBack") >= 2
    assert max(world.jobs_created.values()) == 1 and len(world.jobs_created) >= 2
    world.nodes.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert '"given_back":0' in world.status["ledger"]


@pytest.mark.parametrize("taken", [0, 5])
def test_gpus_are_free_while_the_run_pauses(tmp_path: Path, taken: int) -> None:
    """A run that has given back holds nothing, and says what it waits for."""
    world = World(tmp_path, only=LAST_TWO)
    world.nodes.gpus = 8 - taken
    controller = world.controller()
    held = []
    for _ in range(400 if taken else 20):
        controller.round()
        world.cluster.advance(15)
        if "gave its GPUs back" in world.status["message"]:
            held.append(world.nodes.taken())
    assert bool(held) == bool(taken)
    # The first seconds of a pause are those in which pods end.
    assert held.count(0) >= len(held) - world.reasons.count("GaveBack")


def test_a_job_that_its_queue_holds_back_is_said_to_be_queued(tmp_path: Path) -> None:
    world = World(tmp_path, only=LAST_TWO)
    world.nodes.leaves_alone = lambda name: "train-solver" in name
    controller = world.controller()
    world.go(controller, 90, step=15)
    (job,) = [body for name, body in world.cluster.objects(ObjectKind.JOB).items() if "train-solver" in name]
    job["spec"]["suspend"] = True
    for name, pod in list(world.cluster.objects(ObjectKind.POD).items()):
        if "train-solver" in name:
            assert GPU in pod["spec"]["containers"][0]["resources"]["limits"]
            world.cluster.erase(ObjectKind.POD, name)
    controller.round()
    assert world.status["message"] == "r1-i01-train-solver-a1 waits for admission by its queue"
    world.go(controller, 450, step=15)
    assert "Queued" in world.reasons and "quota" not in world.messages
