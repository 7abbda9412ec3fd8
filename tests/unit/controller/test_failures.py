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

LOST = "its pod was evicted, preempted or lost its node"
FREE = [
    (PodEnding(exit_code=75, message="judge is down"), "something outside was down (judge is down)"),
    (PodEnding(exit_code=143), "it was stopped after saving"),
    (PodEnding(exit_code=130), "it was stopped after saving"),
    (PodEnding(exit_code=137, status=EVICTED), LOST),
    (PodEnding(exit_code=143, status=TARGET), LOST),
    (PodEnding(status={"reason": "NodeLost"}), LOST),
    (PodEnding(status={"reason": "UnexpectedAdmissionError"}), LOST),
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


def failing(root: Path, ending: PodEnding, *, times: int) -> World:
    """A run in which the first attempts of one stage end in one way."""
    world, ended = World(root, only=[STAGE]), list[str]()

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        if len(ended) == times:
            return world.stages(job, rank)
        ended.append(job["metadata"]["name"])
        return ending

    world.work_on(STAGE, work)
    return world


def attempts(*numbers: int) -> dict[str, int]:
    return {f"r1-{STAGE}-a{number}": 1 for number in numbers}


@pytest.mark.parametrize(("ending", "why"), FREE)
def test_what_is_nobodys_fault_is_tried_again_however_often(
    tmp_path: Path, ending: PodEnding, why: str, record_property: Report
) -> None:
    record_property("injected", 4)
    world = failing(tmp_path, ending, times=4)
    assert world.drive().code is ExitCode.DONE
    assert world.jobs_created == attempts(1, 2, 3, 4, 5)
    assert why in world.messages
    pauses = [line.rpartition("trying again within ")[2] for line in world.said if "trying again" in line]
    assert pauses == ["15 s", "30 s", "60 s", "120 s"]


@pytest.mark.parametrize(("ending", "why"), COUNTED)
def test_our_own_failures_are_tried_again_within_the_budget(
    tmp_path: Path, ending: PodEnding, why: str, record_property: Report
) -> None:
    record_property("injected", 3 + 4)
    world = failing(tmp_path / "within", ending, times=3)
    assert world.drive().code is ExitCode.DONE
    assert why in world.messages
    world = failing(tmp_path / "beyond", ending, times=4)
    run_end = world.drive()
    assert (run_end.code, run_end.message.startswith(f"{STAGE}: {why}")) == (ExitCode.BUG, True)
    assert world.jobs_created == attempts(1, 2, 3, 4)


@pytest.mark.parametrize(("ending", "why"), FATAL)
def test_what_a_person_must_mend_is_never_tried_again(tmp_path: Path, ending: PodEnding, why: str) -> None:
    world = failing(tmp_path, ending, times=1)
    run_end = world.drive()
    assert (run_end.code, run_end.message.startswith(f"{STAGE}: {why}")) == (ExitCode.USER, True)
    assert world.jobs_created == attempts(1)
    assert world.status["phase"] == "Failed"
    assert not world.cluster.objects(ObjectKind.DEPLOYMENT)


@pytest.mark.parametrize("ending", [PodEnding(exit_code=64, message="no such model"), PodEnding(exit_code=1)])
def test_a_failed_run_stays_failed_until_it_is_applied_again(tmp_path: Path, ending: PodEnding) -> None:
    """The pods that its Job makes after the end report it again and do nothing."""
    world = failing(tmp_path, ending, times=4 if ending.exit_code == 1 else 1)
    run_end = world.drive()
    created, before = dict(world.cluster.created), len(world.cluster.calls)
    for number in range(5):
        assert world.drive(world.controller(identity=f"later-{number}")) == run_end
    assert world.cluster.created == created
    written = {(call.method, call.name) for call in world.cluster.calls[before:] if call.method != "GET"}
    # Their Lease and the status: not even their own Job, which would end at a deadline.
    assert written == {("PUT", "r1-controller"), ("PATCH", "r1-status")}
    spec = world.cluster.objects(ObjectKind.JOB)["r1-controller"]["spec"]
    assert not spec.keys() & {"activeDeadlineSeconds", "ttlSecondsAfterFinished"}
    world.cluster.remove(ObjectKind.JOB, "r1-controller")
    world.cluster.advance(30)
    world.add_controller_job()
    assert world.drive(world.controller(identity="again")).code is ExitCode.DONE


@pytest.mark.fault(20)
def test_the_rank_that_explains_the_others_decides(tmp_path: Path) -> None:
    world = World(tmp_path, THREE_NODES, only=[STAGE])
    endings = [PodEnding(143), PodEnding(64, message="no such model"), PodEnding(1)]
    world.work_on(STAGE, lambda job, rank: endings[rank])
    assert world.drive() == RunEnd(ExitCode.USER, f"{STAGE}: no such model")


def test_a_job_that_ends_well_without_a_manifest_does_not_finish_the_stage(
    tmp_path: Path, record_property: Report
) -> None:
    record_property("injected", 2)
    world = failing(tmp_path, PodEnding(), times=2)
    assert world.drive().code is ExitCode.DONE
    assert world.jobs_created == attempts(1, 2, 3)
    assert "its manifest is not on the volume" in world.messages


def test_a_manifest_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    world = failing(tmp_path, PodEnding(), times=99)
    controller = world.controller()
    world.go_until(controller, lambda: "waiting for its manifest" in world.status.get("message", ""))
    (step,) = [step for step in steps_of(world.config) if step.name == STAGE]
    world.stages.publish(step, "a slow volume")
    assert world.drive(controller).code is ExitCode.DONE
    assert world.jobs_created == attempts(1)


DEADLINE = ONE | {"cluster": ONE["cluster"] | {"deadline": 600}}


def test_a_stage_that_outlives_its_deadline_is_tried_again_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 1)
    world = World(tmp_path, DEADLINE, only=[STAGE])
    world.work_on(STAGE, lambda job, rank: None)
    run_end = world.drive()
    assert (run_end.code, "met its deadline" in run_end.message) == (ExitCode.BUG, True)
    assert world.jobs_created == attempts(1, 2)


@pytest.mark.parametrize("quota", [{}, {"pods": 2}], ids=["no node", "no pod"])
def test_a_deadline_that_is_met_before_any_pod_had_a_node_costs_no_budget(
    tmp_path: Path, quota: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRIES", 1)
    world = World(tmp_path, DEADLINE, quota=quota, only=[STAGE])
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
    job = world.add_controller_job("r1-again-controller")
    assert world.drive(world.controller(job=job, identity="pod-2")).code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    record_property("injected", len(world.jobs_created))
    assert not [name for name in world.cluster.objects(ObjectKind.JOB) if "-a1" in name]


@pytest.mark.fault(17)
def test_an_unfinished_job_that_somebody_deleted_is_made_again_once(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE])
    controller = world.running()
    world.cluster.remove(ObjectKind.JOB, f"r1-{STAGE}-a1")
    assert world.drive(controller).code is ExitCode.DONE
    assert world.jobs_created == attempts(1, 2)
    assert "its Job was deleted before the stage was done" in world.messages
