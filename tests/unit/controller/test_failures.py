"""The decision table of failures: how a pod ends, and what the controller makes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver import plan
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.parts import RunEnd, steps_of
from scope_selfplay.testing.fake_nodes import PodEnding
from tests.unit.controller.worlds import ONE, World

pytestmark = [pytest.mark.integration, pytest.mark.fault(16)]
Report = Callable[[str, object], None]
EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory."}
TARGET = {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted by a queue"}]}
STAGE = "i01-train-solver"
THREE_NODES = ONE | {"cluster": ONE["cluster"] | {"train_solver": {"gpus": 2, "nodes": 3}}}

FREE = [
    (PodEnding(exit_code=75, message="judge is down"), "something outside was down (judge is down)"),
    (PodEnding(exit_code=143), "it was stopped after saving"),
    (PodEnding(exit_code=130), "it was stopped after saving"),
    (PodEnding(exit_code=137, status=EVICTED), "its pod was evicted, preempted or lost its node"),
    (PodEnding(exit_code=143, status=TARGET), "its pod was evicted, preempted or lost its node"),
    (PodEnding(status={"reason": "NodeLost"}), "its pod was evicted, preempted or lost its node"),
    (
        PodEnding(status={"reason": "UnexpectedAdmissionError"}),
        "its pod was evicted, preempted or lost its node",
    ),
]
COUNTED = [
    (PodEnding(exit_code=1, message="Traceback\nKeyError: 'x'\n"), "it ended with an error (KeyError: 'x')"),
    (PodEnding(exit_code=2), "it ended with an error; see its log"),
    (PodEnding(exit_code=137), "it was killed with SIGKILL"),
]
FATAL = [
    (PodEnding(exit_code=64, message="a\nscope: tasks.low is above tasks.high"), "scope: tasks.low is above"),
    (PodEnding(exit_code=137, reason="OOMKilled"), "out of memory: raise its limit in cluster.<stage>.pod"),
]


@pytest.mark.parametrize(("ending", "why"), FREE)
def test_what_is_nobodys_fault_is_tried_again_however_often(
    tmp_path: Path, ending: PodEnding, why: str, record_property: Report
) -> None:
    record_property("injected", 4)
    world = _world(tmp_path, ending, times=4)
    assert world.drive().code is ExitCode.DONE
    assert f"r1-{STAGE}-a5" in world.jobs_created
    assert why in world.messages


@pytest.mark.parametrize(("ending", "why"), COUNTED)
def test_our_own_failures_are_tried_again_within_the_budget(
    tmp_path: Path, ending: PodEnding, why: str, record_property: Report
) -> None:
    record_property("injected", 3 + 4)
    world = _world(tmp_path / "within", ending, times=3)
    assert world.drive().code is ExitCode.DONE
    assert why in world.messages
    world = _world(tmp_path / "beyond", ending, times=4)
    run_end = world.drive()
    assert (run_end.code, run_end.message.startswith(f"{STAGE}: {why}")) == (ExitCode.BUG, True)
    assert [name for name in world.jobs_created if STAGE in name] == [
        f"r1-{STAGE}-a{attempt}" for attempt in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize(("ending", "why"), FATAL)
def test_what_a_person_must_mend_is_never_tried_again(tmp_path: Path, ending: PodEnding, why: str) -> None:
    world = _world(tmp_path, ending, times=1)
    run_end = world.drive()
    assert run_end.code is ExitCode.USER
    assert run_end.message.startswith(f"{STAGE}: {why}")
    assert f"r1-{STAGE}-a2" not in world.jobs_created
    assert world.status["phase"] == "Failed"
    assert not world.cluster.objects(ObjectKind.DEPLOYMENT)


def test_a_failed_run_stays_failed_until_it_is_applied_again(tmp_path: Path) -> None:
    world = _world(tmp_path, PodEnding(exit_code=1), times=4)
    assert world.drive().code is ExitCode.BUG
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.BUG
    assert f"r1-{STAGE}-a5" not in world.jobs_created
    world.cluster.remove(ObjectKind.JOB, "r1-controller")
    world.cluster.advance(30)
    world.add_controller_job()
    assert world.drive(world.controller(identity="pod-3")).code is ExitCode.DONE


@pytest.mark.parametrize("ending", [PodEnding(exit_code=64, message="no such model"), PodEnding(exit_code=1)])
def test_the_pods_that_its_job_makes_after_the_end_report_it_again_and_do_nothing(
    tmp_path: Path, ending: PodEnding
) -> None:
    world = _world(tmp_path, ending, times=99)
    run_end = world.drive()
    created, before = dict(world.cluster.created), len(world.cluster.calls)
    for number in range(5):
        assert world.drive(world.controller(identity=f"later-{number}")) == run_end
    assert world.cluster.created == created
    written = {(call.method, call.name) for call in world.cluster.calls[before:] if call.method != "GET"}
    # Their Lease and the status: not even their own Job, which would end at a deadline.
    assert written == {("PUT", "r1-controller"), ("PATCH", "r1-status")}
    assert "activeDeadlineSeconds" not in world.cluster.objects(ObjectKind.JOB)["r1-controller"]["spec"]


@pytest.mark.fault(20)
def test_one_rank_lost_starts_all_of_them_again(tmp_path: Path) -> None:
    world, lost = World(tmp_path, THREE_NODES, only=[STAGE]), list[str]()

    def work(job: dict[str, Any], rank: int) -> PodEnding | None:
        if lost:
            return world.stages(job, rank)
        if rank != 1:
            return None
        lost.append(job["metadata"]["name"])
        return PodEnding(status={"reason": "NodeLost"})

    world.work_on(STAGE, work)
    assert world.drive().code is ExitCode.DONE
    pods = [name for kind, name in world.cluster.created if kind is ObjectKind.POD and STAGE in name]
    assert [sum(f"a{attempt}-" in name for name in pods) for attempt in (1, 2)] == [3, 3]
    assert f"r1-{STAGE}" not in world.cluster.objects(ObjectKind.SERVICE)


@pytest.mark.fault(20)
def test_the_rank_that_explains_the_others_decides(tmp_path: Path) -> None:
    world = World(tmp_path, THREE_NODES, only=[STAGE])
    endings = [PodEnding(143), PodEnding(64, message="no such model"), PodEnding(1)]
    world.work_on(STAGE, lambda job, rank: endings[rank])
    assert world.drive() == RunEnd(ExitCode.USER, f"{STAGE}: no such model")


def test_a_job_that_ends_well_without_a_manifest_does_not_finish_the_stage(
    tmp_path: Path, record_property: Report
) -> None:
    world = _world(tmp_path, PodEnding(), times=2)
    assert world.drive().code is ExitCode.DONE
    record_property("injected", 2)
    assert f"r1-{STAGE}-a3" in world.jobs_created
    assert "its manifest is not on the volume" in world.messages


def test_a_manifest_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    world = _world(tmp_path, PodEnding(), times=99)
    controller = world.controller()
    world.go_until(controller, lambda: "waiting for its manifest" in world.status.get("message", ""))
    (step,) = [step for step in steps_of(world.config) if step.name == STAGE]
    world.stages.publish(step, "a slow volume")
    assert world.drive(controller).code is ExitCode.DONE
    assert f"r1-{STAGE}-a2" not in world.jobs_created


def test_a_stage_that_outlives_its_deadline_is_tried_again_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 1)
    data = ONE | {"cluster": ONE["cluster"] | {"deadline": 600}}
    world = World(tmp_path, data, only=[STAGE])
    world.work_on(STAGE, lambda job, rank: None)
    run_end = world.drive()
    assert (run_end.code, "met its deadline" in run_end.message) == (ExitCode.BUG, True)
    assert f"r1-{STAGE}-a2" in world.jobs_created


@pytest.mark.parametrize("quota", [{}, {"pods": 2}], ids=["no node", "no pod"])
def test_a_deadline_that_is_met_before_any_pod_had_a_node_costs_no_budget(
    tmp_path: Path, quota: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 1)
    data = ONE | {"cluster": ONE["cluster"] | {"deadline": 600}}
    world = World(tmp_path, data, quota=quota, only=[STAGE])
    world.nodes.gpus = 8 if quota else 2
    # A controller that was started again in between has not seen what the first one saw.
    for number in range(4):
        controller = world.controller()
        world.go(controller, 650)
        assert f"r1-{STAGE}-a{number + 1}" in world.jobs_created
    assert "no pod of it had a node before its deadline" in world.messages
    world.nodes.gpus, world.cluster.quota = 8, {}
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(17)
def test_a_finished_job_that_its_ttl_deleted_is_not_run_again(
    tmp_path: Path, record_property: Report
) -> None:
    world = World(tmp_path)
    assert world.drive().code is ExitCode.DONE
    world.cluster.advance(90_000)
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    record_property("injected", len(world.jobs_created))
    assert not [name for name in world.cluster.objects(ObjectKind.JOB) if "-a1" in name]


@pytest.mark.fault(17)
def test_an_unfinished_job_that_somebody_deleted_is_made_again_once(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE])
    controller = world.controller()
    world.go_until(controller, lambda: world.status.get("jobs") == f"r1-{STAGE}-a1")
    world.cluster.remove(ObjectKind.JOB, f"r1-{STAGE}-a1")
    assert world.drive(controller).code is ExitCode.DONE
    assert [name for name in world.jobs_created if STAGE in name] == [f"r1-{STAGE}-a1", f"r1-{STAGE}-a2"]
    assert "its Job was deleted before the stage was done" in world.messages


def test_a_node_that_goes_with_its_pod_costs_no_budget(tmp_path: Path, record_property: Report) -> None:
    world, gone = World(tmp_path, only=[STAGE]), 0
    controller = world.controller()
    while gone < 5:
        controller.round()
        world.cluster.advance(5)
        for name in world.cluster.objects(ObjectKind.POD):
            if STAGE in name and f"a{gone + 1}-" in name:
                world.cluster.erase(ObjectKind.POD, name)
                gone += 1
    assert world.drive(controller).code is ExitCode.DONE
    record_property("injected", gone)
    assert "its pod is gone" in world.messages


def _world(root: Path, ending: PodEnding, *, times: int) -> World:
    """A run in which the first attempts of one stage end in one way."""
    world, ended = World(root, only=[STAGE]), list[str]()

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        if len(ended) == times:
            return world.stages(job, rank)
        ended.append(job["metadata"]["name"])
        return ending

    world.work_on(STAGE, work)
    return world
