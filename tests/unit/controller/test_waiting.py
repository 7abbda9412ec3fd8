"""What the controller waits for, says, and at last gives up on; runs that need the same GPUs: nobody waits for ever,
and nothing holds what it cannot use."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import Label
from scope_selfplay.driver import plan
from scope_selfplay.driver.api import VERBS, Body, ObjectKind
from scope_selfplay.driver.loop import Controller
from scope_selfplay.driver.observed import ObservedCluster
from scope_selfplay.driver.parts import DesiredSteps, Inputs, RunEnd, VolumeState
from scope_selfplay.driver.plan import next_actions
from scope_selfplay.testing.fake_nodes import GPU, PodEnding, SimulatedStages
from tests.unit.controller.worlds import ONE, World, config_of, context_of, sized

STAGE = "i01-train-solver"
CONDITION = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
UNSCHEDULED = {"phase": "Pending", "conditions": [CONDITION]}


_STATES = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "see the node"}},
    "lastState": {"terminated": {"exitCode": 64, "message": "scope: no such index"}},
}
REFUSING = {"phase": "Pending", "containerStatuses": [{"name": "main", **_STATES}]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """All but one stage is done."""
    return World(tmp_path, only=[STAGE])


@pytest.fixture
def busy(tmp_path: Path) -> tuple[World, Controller]:
    """The Job of one stage runs, and goes on."""
    world = World(tmp_path, work=lambda job, rank: None, only=[STAGE])
    return world, world.running()


def starting(world: World) -> Controller:
    """Its servers do not answer."""
    world.nodes.startup = 1e9
    controller = world.controller()
    world.go(controller, 5, step=5)
    return controller


def pod_of(world: World, owner: str) -> str:
    return next(name for name in world.cluster.objects(ObjectKind.POD) if name.startswith(owner))


def set_judge(world: World, status: dict[str, Any]) -> None:
    """What becomes of the judge's pod from now on."""
    judge = pod_of(world, "r1-judge")
    world.nodes.leaves_alone = lambda name: name == judge
    world.cluster.objects(ObjectKind.POD)[judge]["status"] = status


@pytest.mark.fault(21)
@pytest.mark.parametrize("owner", ["r1-judge", f"r1-{STAGE}"])
def test_a_pod_on_a_lost_node_that_holds_up_its_job_or_server_is_reported_after_five_minutes(
    busy: tuple[World, Controller], owner: str
) -> None:
    world, controller = busy
    name = pod_of(world, owner)
    world.nodes.never_ends = lambda pod: pod == name
    world.cluster.remove(ObjectKind.POD, name)
    world.cluster.objects(ObjectKind.POD)[name]["status"] = {"phase": "Running"}
    if owner != "r1-judge":
        # Newer clusters hold `Failed` back until the Job's pods have ended.
        target = {"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}
        status = {"conditions": [target], "endedAt": 1e12}
        world.cluster.objects(ObjectKind.JOB)[f"{owner}-a1"]["status"] = status
    world.go(controller, 280)
    assert "StillEnding" not in world.reasons
    world.go(controller, 60)
    assert world.reasons.count("StillEnding") == 1
    said = f"{name} did not end within five minutes; where the machine is gone for good, `kubectl delete node fake`"
    assert world.status["message"] == said


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    ("gpus", "quota", "held", "reason", "said"),
    [
        (2, {}, "no pod", "Pending", "Insufficient nvidia.com/gpu"),
        (8, {}, "r1-judge", "NotStarting", "`kubectl describe pod r1-judge"),
        (8, {}, f"r1-{STAGE}", "NotStarting", f"`kubectl describe pod r1-{STAGE}"),
        (8, {"pods": 2}, "no pod", "NoPod", f"r1-{STAGE}-a1 has no pod for five minutes; a quota?"),
    ],
)
def test_a_pod_that_waits_is_reported_after_five_minutes_and_waited_for(
    world: World, gpus: int, quota: dict[str, int], held: str, reason: str, said: str
) -> None:
    world.nodes.gpus, world.cluster.quota = gpus, quota
    world.nodes.never_starts = lambda name: name.startswith(held)
    controller = world.controller()
    world.go(controller, 200)
    assert reason not in world.reasons
    world.go(controller, 300)
    assert world.reasons.count(reason) == 1 and said in world.messages
    world.nodes.gpus, world.cluster.quota = 8, {}
    world.nodes.never_starts = lambda name: False
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(16)
def test_a_server_that_never_answers_is_made_again_however_often_after_pauses_that_grow(world: World) -> None:
    world.nodes.startup = 1e9

    def servers() -> dict[str, Any]:
        return world.cluster.objects(ObjectKind.DEPLOYMENT)

    for pause in (15, 30, 60):
        # Whoever leads next goes on counting.
        controller = world.controller()
        world.go_until(controller, servers)
        world.go_until(controller, lambda: "r1-judge" not in servers(), step=20)
        gone = world.cluster.now
        late = f"r1-judge did not answer within 1800 s (no message); it is deleted, and made again after {pause} s"
        assert late in world.messages
        world.go_until(controller, lambda: "r1-judge" in servers())
        assert pause <= world.cluster.now - gone <= pause + 10
    assert (world.status["phase"], world.jobs_created) == ("Running", {})
    world.nodes.startup = 10
    assert world.drive(controller).code is ExitCode.DONE
    assert '"given_up":{}' in world.status["ledger"]


def test_an_end_for_an_outside_reason_is_not_recorded() -> None:
    context, nothing = context_of(config_of(ONE)), VolumeState(frozenset())
    for code, kept in ((ExitCode.OUTSIDE, None), (ExitCode.USER, 64), (ExitCode.BUG, 1)):
        desired = DesiredSteps(context, problem=RunEnd(code, "why"))
        plan = next_actions(desired, ObservedCluster(), nothing, {})
        assert json.loads(plan.status["ledger"])["code"] == kept


@pytest.mark.fault(16)
def test_a_server_that_ends_with_exit_64_ends_the_run_at_once_with_its_message(world: World) -> None:
    controller = starting(world)
    set_judge(world, REFUSING)
    assert world.drive(controller) == RunEnd(ExitCode.USER, "r1-judge: scope: no such index")


@pytest.mark.fault(16)
def test_what_becomes_of_a_server_while_a_job_runs_is_reported(
    busy: tuple[World, Controller], record_property: Callable[[str, object], None]
) -> None:
    record_property("injected", 3)
    world, controller = busy
    set_judge(world, UNSCHEDULED)
    world.go(controller, 100)
    assert "waits for a node: 0/1 nodes are available" in world.status["message"]
    assert "Pending" not in world.reasons
    world.go(controller, 300)
    assert world.reasons.count("Pending") == 1
    set_judge(world, REFUSING)
    world.go(controller, 20)
    assert "CrashLoopBackOff: see the node (scope: no such index)" in world.status["message"]
    assert "PodStuck" in world.reasons
    world.cluster.quota = {"pods": 0}
    world.cluster.erase(ObjectKind.POD, pod_of(world, "r1-judge"))
    world.go(controller, 60)
    assert world.status["message"] == "r1-judge: exceeded quota"
    assert "NoPod" in world.reasons


def test_a_controller_that_starts_again_repeats_its_events_without_a_second_copy(world: World) -> None:
    world.cluster.quota = {"jobs": 1}
    for _ in range(3):
        world.go(world.controller(), 100)
    assert world.reasons == ["NoRoom"]
    assert "exceeded quota" in world.messages
    world.cluster.quota = {}
    assert world.drive().code is ExitCode.DONE


def test_a_run_without_the_right_to_write_events_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, verbs={**VERBS, ("", "events"): frozenset()}, only=[STAGE])
    assert world.drive().code is ExitCode.DONE
    assert any("events is forbidden: cannot create" in line for line in world.said)


def test_another_controllers_objects_are_neither_adopted_nor_deleted(world: World) -> None:
    other = world.cluster.put(ObjectKind.JOB, {"metadata": {"name": "other"}, "spec": {}})["metadata"]["uid"]
    labels = {"scope/run": "r1", "scope/server": "r1-judge"}
    owners = [{"uid": other, "controller": True}]
    metadata = {"name": "r1-judge", "labels": labels, "annotations": {}, "ownerReferences": owners}
    template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    body = {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
    world.cluster.put(ObjectKind.DEPLOYMENT, body)
    world.go(world.controller(), 100)
    assert "waiting for Deployment r1-judge, which another controller owns" in world.status["message"]
    assert list(world.cluster.objects(ObjectKind.DEPLOYMENT)) == ["r1-judge"]
    assert "ForeignObject" in world.reasons


def test_a_server_that_differs_is_brought_up_to_date_between_jobs_only(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE, "i01-compare"])
    controller = world.running()
    judge = world.cluster.objects(ObjectKind.DEPLOYMENT)["r1-judge"]
    changed = config_of(ONE | {"cluster": ONE["cluster"] | {"judge": sized(memory="80Gi")}})
    world.inputs = world.inputs._replace(config=changed)
    controller.round()
    assert judge["metadata"]["generation"] == 1
    assert world.drive(controller).code is ExitCode.DONE
    assert judge["metadata"]["generation"] == 2


class Neighbours:
    """`r1`, `r2` ...; each stage Job publishes in its own run's folder."""

    def __init__(self, root: Path, count: int) -> None:
        names = [f"r{number}" for number in range(1, count + 1)]
        self.world = World(root)
        self.stages = {name: SimulatedStages(root, name) for name in names}
        self.world.nodes.work = self._work
        self.ended: dict[str, ExitCode] = {}
        self.idle = 0.0
        """The most seconds in a row in which no stage was at work."""
        self.controllers: dict[str, Controller] = {}
        for name in names:
            config = config_of(ONE, name=name)
            inputs = Inputs(config, "0123456789abcdef", (config.domain,))
            if name != "r1":
                self.world.add_controller_job(f"{name}-controller")
            self.controllers[name] = self.world.controller(
                identity=f"pod-{name}", job=f"{name}-controller", read=partial(Inputs, *inputs)
            )

    def drive(self, hours: float) -> None:
        """Rounds until all runs have ended."""
        cluster, idle = self.world.cluster, 0.0
        end = cluster.now + hours * 3600
        while len(self.ended) < len(self.controllers):
            assert cluster.now < end, self.messages()
            for name in [name for name in self.controllers if name not in self.ended]:
                if (run_end := self.controllers[name].round()) is not None:
                    self.controllers[name].stop()
                    self.ended[name] = run_end.code
            cluster.advance(5)
            idle = 0.0 if self._works() else idle + 5
            self.idle = max(self.idle, idle)

    def _works(self) -> bool:
        """Whether the pod of a stage runs now; its servers answer then."""
        pods = self.world.cluster.objects(ObjectKind.POD).values()
        running = (pod["metadata"]["labels"] for pod in pods if pod["status"]["phase"] == "Running")
        return any("job-name" in labels and Label.SERVER not in labels for labels in running)

    def messages(self) -> dict[str, str]:
        maps = self.world.cluster.objects(ObjectKind.CONFIG_MAP)
        return {name: maps[f"{name}-status"]["data"]["message"] for name in self.controllers}

    def _work(self, job: Body, rank: int) -> PodEnding:
        return self.stages[job["metadata"]["labels"][Label.RUN]](job, rank)


LAST_TWO = ("i01-train-solver", "i01-compare")


def test_runs_on_one_node_all_finish_and_its_gpus_are_idle_for_a_minute_at_most(tmp_path: Path) -> None:
    """Judge and Solver of two runs take all eight GPUs: alone, each would wait for the other's for ever. Idle is when
    no stage works; what is left of it is servers that end and start between two stages."""
    neighbours = Neighbours(tmp_path, 3)
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
    judge["status"] = UNSCHEDULED
    with pytest.raises(AssertionError):
        neighbours.drive(hours=0.2)
    assert neighbours.messages()["r2"] == "makes way for r1, which came first and waits for a node"
    assert not [name for name in world.cluster.objects(ObjectKind.DEPLOYMENT) if name.startswith("r2-")]
    with pytest.raises(AssertionError):
        neighbours.drive(hours=1)
    assert neighbours.ended == {"r2": ExitCode.DONE}


def test_a_run_that_has_given_back_holds_nothing_and_loses_neither_retry_nor_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 0)
    settings = ONE | {"cluster": ONE["cluster"] | {"patience": 900}}
    world, held = World(tmp_path, settings, only=LAST_TWO), list[int]()
    world.nodes.gpus = 3
    controller = world.controller()
    for _ in range(500):
        world.go(controller, 15, step=15)
        if "gave its GPUs back" in world.status["message"]:
            held.append(world.nodes.taken())
    # The first seconds of a pause are those in which pods end.
    assert held and held.count(0) >= len(held) - world.reasons.count("GaveBack")
    assert world.reasons.count("GaveBack") >= 2
    assert max(world.jobs_created.values()) == 1 and len(world.jobs_created) >= 2
    world.nodes.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert '"given_back":0' in world.status["ledger"]


def test_a_pool_that_grows_from_nothing_is_waited_for_and_keeps_what_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, only=LAST_TWO)
    controller = world.controller()
    for gpus, hours in ((0, 6.0), (3, 0.45)):
        world.nodes.gpus = gpus
        world.go(controller, 3600 * hours, step=15)
        assert "waits for a node" in world.status["message"]
    world.nodes.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert "GaveBack" not in world.reasons and set(world.jobs_created.values()) == {1}


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
