"""Runs that need the same GPUs: nobody waits for ever, and nothing holds what it cannot use."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.loop import Controller, Inputs
from scope_selfplay.errors import ExitCode
from scope_selfplay.testing.fake_nodes import GPU, PodEnding, SimulatedStages
from tests.unit.controller.examples import config_of
from tests.unit.controller.worlds import ONE, World

LAST_TWO = ("i01-train-solver", "i01-compare")


class Neighbours:
    """Several runs in one namespace, on the GPUs of one node; each stage Job publishes in its own run's folder."""

    def __init__(self, root: Path, count: int, data: dict[str, Any] | None = None) -> None:
        names = [f"r{number}" for number in range(1, count + 1)]
        self.world = World(root, data or ONE)
        self.stages = {name: SimulatedStages(root, name) for name in names}
        self.world.nodes.work = self._work
        self.ended: dict[str, ExitCode] = {}
        self.controllers: dict[str, Controller] = {}
        for name in names:
            config = config_of((data or ONE) | {"name": name})
            inputs = Inputs(config, "0123456789abcdef", (config.domain,))
            if name != "r1":
                self.world.add_controller_job(f"{name}-controller")
            self.controllers[name] = self.world.controller(
                identity=f"pod-{name}", job=f"{name}-controller", read=partial(Inputs, *inputs)
            )

    def _work(self, job: Body, rank: int) -> PodEnding:
        return self.stages[job["metadata"]["labels"]["scope/run"]](job, rank)

    def drive(self, hours: float) -> float:
        """Rounds of all controllers until all runs have ended; the most seconds in which no stage had a node."""
        idle = longest = 0.0
        start = self.world.cluster.now
        while len(self.ended) < len(self.controllers):
            assert self.world.cluster.now - start < hours * 3600, self.messages()
            for name, controller in self.controllers.items():
                if name not in self.ended and (end := controller.round()) is not None:
                    controller.stop()
                    self.ended[name] = end.code
            before = self.world.cluster.now
            self.world.cluster.advance(15)
            idle = 0.0 if self.works() else idle + self.world.cluster.now - before
            longest = max(longest, idle)
        return longest

    def works(self) -> bool:
        pods = self.world.cluster.objects(ObjectKind.POD).values()
        return any("job-name" in pod["metadata"]["labels"] and pod["spec"].get("nodeName") for pod in pods)

    def messages(self) -> dict[str, str]:
        maps = self.world.cluster.objects(ObjectKind.CONFIG_MAP)
        return {name: maps[f"{name}-status"]["data"]["message"] for name in self.controllers}


def test_two_runs_that_hold_each_others_gpus_both_finish(tmp_path: Path) -> None:
    """Judge and Solver of both take all eight GPUs; without giving back, both trainers wait for ever."""
    neighbours = Neighbours(tmp_path, 2)
    longest = neighbours.drive(hours=12)
    assert set(neighbours.ended.values()) == {ExitCode.DONE}
    assert "GaveBack" in neighbours.world.reasons
    assert "found no room for all its pods within" in neighbours.world.messages
    for name, stages in neighbours.stages.items():
        assert len(stages.published) == len(set(stages.published)) == 6, name
    # One of them gives back within twice its patience.
    assert longest <= 2 * 900 + 60


def test_giving_back_costs_no_retry_and_no_number_is_used_twice(tmp_path: Path) -> None:
    world = World(tmp_path, ONE | {"cluster": ONE["cluster"] | {"retries": 0}})
    world.have_done_all_but(*LAST_TWO)
    world.nodes.gpus = 3
    controller = world.controller()
    for _ in range(500):
        assert controller.round() is None
        world.cluster.advance(15)
    assert world.reasons.count("GaveBack") >= 2
    assert max(world.jobs_created.values()) == 1 and len(world.jobs_created) >= 2
    world.nodes.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert '"given_back":0' in world.status["ledger"]


@pytest.mark.parametrize("taken", [0, 5])
def test_gpus_are_free_while_the_run_pauses(tmp_path: Path, taken: int) -> None:
    """A run that has given back holds nothing, and says what it waits for."""
    world = World(tmp_path)
    world.have_done_all_but(*LAST_TWO)
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
    world = World(tmp_path)
    world.have_done_all_but(*LAST_TWO)
    world.nodes.leaves_alone = lambda name: "train-solver" in name
    controller = world.controller()
    for _ in range(6):
        controller.round()
        world.cluster.advance(15)
    (job,) = [body for name, body in world.cluster.objects(ObjectKind.JOB).items() if "train-solver" in name]
    job["spec"]["suspend"] = True
    for name, pod in list(world.cluster.objects(ObjectKind.POD).items()):
        if "train-solver" in name:
            assert GPU in pod["spec"]["containers"][0]["resources"]["limits"]
            world.cluster.erase(ObjectKind.POD, name)
    controller.round()
    assert world.status["message"] == "r1-i01-train-solver-a1 waits until its queue admits it"
    for _ in range(30):
        controller.round()
        world.cluster.advance(15)
    assert "Queued" in world.reasons and "quota" not in world.messages
