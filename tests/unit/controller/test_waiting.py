"""What the controller waits for, says, and at last gives up on."""

import json
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver.api import VERBS, ObjectKind
from scope_selfplay.driver.loop import Controller
from scope_selfplay.driver.observed import ObservedCluster
from scope_selfplay.driver.parts import DesiredSteps, RunEnd, VolumeState
from scope_selfplay.driver.plan import next_actions
from scope_selfplay.testing.fake_cluster import ApiCall, ApiFault
from tests.unit.controller.examples import config_of, context_of, sized
from tests.unit.controller.worlds import ONE, World

STAGE = "i01-train-solver"
UNSCHEDULED = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    ],
}
REFUSING = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
    "lastState": {"terminated": {"exitCode": 64, "message": "scope: no such index"}},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """All but one stage is done."""
    return World(tmp_path, only=[STAGE])


@pytest.mark.fault(21)
def test_a_server_pod_that_will_not_end_holds_the_next_stage_back(tmp_path: Path) -> None:
    world = World(tmp_path, only=["i01-make-tasks", STAGE])
    world.nodes.never_ends = lambda name: "i01-solver" in name
    controller = world.controller()
    world.go(controller, 600)
    assert [name for name in world.jobs_created if STAGE in name] == []
    assert f"{STAGE} needs the GPUs" in world.status["message"]
    assert "StillEnding" in world.reasons
    world.nodes.never_ends = lambda name: False
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(21)
@pytest.mark.parametrize("pod", ["r1-judge", f"r1-{STAGE}"])
def test_a_pod_on_a_lost_node_that_holds_up_its_job_or_server_is_reported_after_five_minutes(
    tmp_path: Path, pod: str
) -> None:
    world, controller = _running(tmp_path)
    name = next(name for name in world.cluster.objects(ObjectKind.POD) if name.startswith(pod))
    world.nodes.never_ends = lambda pod_name: pod_name == name
    world.cluster.remove(ObjectKind.POD, name)
    world.cluster.objects(ObjectKind.POD)[name]["status"] = {"phase": "Running"}
    if pod != "r1-judge":
        # Newer clusters hold `Failed` back until the Job's pods have ended.
        target = {"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}
        world.cluster.objects(ObjectKind.JOB)[f"{pod}-a1"]["status"] = {
            "conditions": [target],
            "endedAt": 1e12,
        }
    world.go(controller, 280)
    assert "StillEnding" not in world.reasons
    world.go(controller, 60)
    assert world.reasons.count("StillEnding") == 1
    said = f"{name} did not end within five minutes; where the machine is gone for good, `kubectl delete node fake`"
    assert world.status["message"] == said


@pytest.mark.fault(16)
def test_a_pod_without_a_node_is_reported_after_five_minutes_with_the_schedulers_reason(world: World) -> None:
    world.nodes.gpus = 2
    controller = world.controller()
    world.go(controller, 200)
    assert "Pending" not in world.reasons
    world.go(controller, 300)
    assert world.reasons.count("Pending") == 1
    assert "Insufficient nvidia.com/gpu" in world.messages
    world.nodes.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(16)
def test_a_server_that_never_answers_is_made_again_however_often(world: World) -> None:
    world.nodes.startup = 1e9
    world.go(world.controller(), 1840)
    late = "r1-judge did not answer within 1800 s (no message); it is deleted, and made again after 15 s"
    assert late in world.messages
    # Whoever leads next goes on counting.
    second = world.controller()
    world.go(second, 4200)
    assert "made again after 60 s" in world.messages
    assert world.cluster.created[ObjectKind.DEPLOYMENT, "r1-judge"] == 4
    assert (world.status["phase"], world.jobs_created) == ("Running", {})
    world.nodes.startup = 10
    assert world.drive(second).code is ExitCode.DONE
    assert '"given_up":{}' in world.status["ledger"]


def test_a_server_that_was_given_up_is_gone_for_the_length_of_its_pause(world: World) -> None:
    world.nodes.startup = 1e9
    controller, servers = world.controller(), lambda: world.cluster.objects(ObjectKind.DEPLOYMENT)
    world.go_until(controller, servers)
    for pause in (15, 30, 60):
        world.go_until(controller, lambda: "r1-judge" not in servers())
        gone = world.cluster.now
        world.go_until(controller, lambda: "r1-judge" in servers())
        assert pause <= world.cluster.now - gone <= pause + 10


def test_an_end_for_an_outside_reason_is_not_recorded() -> None:
    context, nothing = context_of(config_of(ONE)), VolumeState(frozenset())
    for code, kept in ((ExitCode.OUTSIDE, None), (ExitCode.USER, 64), (ExitCode.BUG, 1)):
        desired = DesiredSteps(context, problem=RunEnd(code, "why"))
        plan = next_actions(desired, ObservedCluster(), nothing, {})
        assert json.loads(plan.status["ledger"])["code"] == kept


@pytest.mark.fault(16)
def test_a_server_that_ends_with_exit_64_ends_the_run_at_once_with_its_message(world: World) -> None:
    controller = _starting(world)
    _set_pod(world, "r1-judge", {"phase": "Running", "containerStatuses": [{"name": "main", **REFUSING}]})
    assert world.drive(controller) == RunEnd(ExitCode.USER, "r1-judge: scope: no such index")


@pytest.mark.fault(16)
@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError"])
def test_a_container_that_does_not_start_is_reported_at_once(world: World, reason: str) -> None:
    controller = _starting(world)
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": "see the node"}}}
    _set_pod(world, "r1-judge", {"phase": "Pending", "containerStatuses": [waiting]})
    controller.round()
    assert "PodStuck" in world.reasons
    assert f"{reason}: see the node" in world.status["message"]


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


@pytest.mark.fault(12)
def test_a_leader_that_loses_the_lease_while_it_writes_events_stops_there(world: World) -> None:

    def sleep(call: ApiCall) -> ApiFault | None:
        if call.kind is not ObjectKind.EVENT:
            return None
        world.cluster.advance(100)
        return ApiFault.LOST

    world.cluster.faults = sleep
    world.go(world.controller(), 100)
    assert "the Lease was not renewed in time; looking again" in world.said
    assert world.reasons == []


def test_a_quota_on_pods_is_reported_and_waited_for(world: World) -> None:
    world.cluster.quota = {"pods": 2}
    controller = world.controller()
    world.go(controller, 500)
    assert f"r1-{STAGE}-a1 has no pod for five minutes; a quota?" in world.messages
    world.cluster.quota = {}
    assert world.drive(controller).code is ExitCode.DONE


def test_a_quota_without_room_for_a_server_is_waited_for_however_long(world: World) -> None:
    world.cluster.quota = {"pods": 0}
    controller = world.controller()
    world.go(controller, 1000)
    assert world.status["phase"] == "Running"
    assert "exceeded quota" in world.status["message"]
    assert (world.reasons.count("ServerLate"), "NoPod" in world.reasons) == (0, True)
    world.cluster.quota = {}
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(16)
def test_a_server_that_finds_no_node_while_a_job_runs_is_reported_with_the_schedulers_reason(
    tmp_path: Path,
) -> None:
    world, controller = _running(tmp_path)
    _set_pod(world, "r1-judge", UNSCHEDULED)
    world.go(controller, 100)
    assert "waits for a node: 0/1 nodes are available" in world.status["message"]
    assert "Pending" not in world.reasons
    world.go(controller, 300)
    assert world.reasons.count("Pending") == 1


@pytest.mark.fault(16)
def test_a_server_that_ends_with_64_while_a_job_runs_is_reported_with_its_last_line(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    _set_pod(world, "r1-judge", {"phase": "Running", "containerStatuses": [{"name": "main", **REFUSING}]})
    world.cluster.advance(5)
    controller.round()
    assert "CrashLoopBackOff: back-off (scope: no such index)" in world.status["message"]
    assert "PodStuck" in world.reasons


def test_a_server_without_a_pod_while_a_job_runs_is_reported(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    world.cluster.quota = {"pods": 0}
    name = next(name for name in world.cluster.objects(ObjectKind.POD) if name.startswith("r1-judge"))
    world.cluster.erase(ObjectKind.POD, name)
    world.cluster.advance(5)
    controller.round()
    assert world.status["message"] == "r1-judge: exceeded quota"
    assert "NoPod" in world.reasons


@pytest.mark.fault(16)
@pytest.mark.parametrize("pod", ["r1-judge", f"r1-{STAGE}"])
def test_a_pod_that_has_a_node_and_does_not_start_is_reported_after_five_minutes(
    world: World, pod: str
) -> None:
    world.nodes.never_starts = lambda name: name.startswith(pod)
    controller = world.controller()
    world.go(controller, 200)
    assert "NotStarting" not in world.reasons
    world.go(controller, 300)
    assert world.reasons.count("NotStarting") == 1
    assert f"`kubectl describe pod {pod}" in world.status["message"]
    world.nodes.never_starts = lambda name: False
    assert world.drive(controller).code is ExitCode.DONE


def test_another_controllers_objects_are_neither_adopted_nor_deleted(world: World) -> None:
    world.cluster.put(ObjectKind.JOB, {"metadata": {"name": "other"}, "spec": {}})
    other = world.cluster.objects(ObjectKind.JOB)["other"]["metadata"]["uid"]
    labels = {"scope/run": "r1", "scope/server": "r1-judge"}
    owners = [{"uid": other, "controller": True}]
    metadata = {"name": "r1-judge", "labels": labels, "annotations": {}, "ownerReferences": owners}
    template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    body = {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
    world.cluster.put(ObjectKind.DEPLOYMENT, body)
    controller = world.controller()
    world.go(controller, 100)
    assert "waiting for Deployment r1-judge, which another controller owns" in world.status["message"]
    assert list(world.cluster.objects(ObjectKind.DEPLOYMENT)) == ["r1-judge"]
    assert "ForeignObject" in world.reasons


def test_a_server_that_differs_is_brought_up_to_date_between_jobs_only(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE, "i01-compare"])
    controller = world.controller()
    world.go_until(controller, lambda: world.status.get("jobs"))
    judge = world.cluster.objects(ObjectKind.DEPLOYMENT)["r1-judge"]
    changed = ONE | {"cluster": ONE["cluster"] | {"judge": sized(memory="80Gi")}}
    world.inputs = world.inputs._replace(config=World(tmp_path / "other", changed).config)
    controller.round()
    assert judge["metadata"]["generation"] == 1
    assert world.drive(controller).code is ExitCode.DONE
    assert judge["metadata"]["generation"] == 2


def _starting(world: World) -> Controller:
    """Its servers do not answer."""
    world.nodes.startup = 1e9
    controller = world.controller()
    world.go(controller, 5, step=5)
    return controller


def _running(root: Path) -> tuple[World, Controller]:
    """A world in which the Job of one stage runs, and goes on."""
    world = World(root, work=lambda job, rank: None, only=[STAGE])
    controller = world.controller()
    world.go_until(controller, lambda: world.status.get("jobs"))
    return world, controller


def _set_pod(world: World, server: str, status: dict[str, Any]) -> None:
    """What becomes of a server's pod from now on."""
    found = next(name for name in world.cluster.objects(ObjectKind.POD) if name.startswith(server))
    world.nodes.leaves_alone = lambda name: name == found
    world.cluster.objects(ObjectKind.POD)[found]["status"] = status
