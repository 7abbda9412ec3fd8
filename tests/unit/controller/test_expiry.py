"""A controller that is gone for good holds nothing for ever; one that is at work, or whose run has ended, stays."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, UserError
from scope_selfplay.driver.api import VERBS, ObjectKind
from scope_selfplay.driver.loop import KEPT, JobExpiry
from scope_selfplay.testing.fake_cluster import FakeCluster
from tests.unit.controller.worlds import ONE, World

HOUR = 3600.0
OWN = "r1-controller"


def begun(root: Path) -> World:
    """A run whose first stage goes on for ever, with its servers."""
    world = World(root, work=lambda job, rank: None, tick=60.0)
    world.go(world.controller(), 1200, step=60)
    assert world.nodes.taken() == 4
    return world


def spec_of(world: World) -> dict[str, float]:
    spec: dict[str, float] = world.cluster.objects(ObjectKind.JOB)[OWN]["spec"]
    return spec


def test_what_a_controller_that_is_gone_held_is_free_within_its_expiry(tmp_path: Path) -> None:
    world = begun(tmp_path)
    world.cluster.advance(11 * HOUR)
    assert world.nodes.taken() == 4
    world.cluster.advance(1 * HOUR + KEPT + 300)
    assert world.nodes.taken() == 0
    kinds = (ObjectKind.JOB, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE, ObjectKind.POD)
    assert [world.cluster.objects(kind) for kind in kinds] == [{}] * 4
    # Applied again, the run goes on from its volume.
    world.nodes.work = world.stages
    world.add_controller_job()
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE


@pytest.mark.parametrize("pods", [1, 12])
def test_a_controller_at_work_never_expires_however_often_its_pod_is_another(
    tmp_path: Path, pods: int
) -> None:
    world = begun(tmp_path)
    for number in range(pods):
        controller = world.controller(identity=f"pod-{number}")
        world.go(controller, 24 // pods * 0.9 * HOUR, step=0.9 * HOUR)
        controller.stop()
    assert world.cluster.now > 20 * HOUR
    assert world.nodes.taken() == 4
    # Twelve pods in their turn give no longer a time than one.
    assert spec_of(world)["activeDeadlineSeconds"] - world.cluster.now <= 12 * HOUR


def test_a_run_with_a_verdict_keeps_its_job_also_where_another_controller_set_the_deadline(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, ONE)
    first = world.controller()
    while first.round() is None:
        before = spec_of(world)
        world.cluster.advance(15)
    first.stop()
    assert "ttlSecondsAfterFinished" in before
    assert "activeDeadlineSeconds" not in spec_of(world) and "ttlSecondsAfterFinished" not in spec_of(world)
    # As if the last call of the first had not been made.
    own = world.cluster.objects(ObjectKind.JOB)[OWN]
    world.cluster.put(ObjectKind.JOB, {**own, "spec": {**own["spec"], **before}})
    world.drive(world.controller(identity="pod-2"))
    assert "activeDeadlineSeconds" not in spec_of(world) and "ttlSecondsAfterFinished" not in spec_of(world)
    world.cluster.advance(30 * HOUR)
    assert OWN in world.cluster.objects(ObjectKind.JOB) and world.status["phase"] == "Done"


@pytest.mark.parametrize("wrong_by", [-5 * HOUR, 5 * HOUR])
def test_a_clock_that_jumps_under_a_controller_changes_nothing(tmp_path: Path, wrong_by: float) -> None:
    world = begun(tmp_path)
    jumped = False

    def wall() -> float:
        return world.cluster.now + (wrong_by if jumped else 0.0)

    cluster = world.controller().leadership.cluster
    clock = JobExpiry(cluster, OWN, lambda: world.cluster.now, wall, world.said.append)
    for _ in range(3):
        clock.renew(43_200)
        world.cluster.advance(HOUR)
        jumped = True
    ahead = spec_of(world)["activeDeadlineSeconds"] - (world.cluster.now - HOUR)
    assert 11 * HOUR <= ahead <= 12 * HOUR + 60


def test_one_that_may_not_delete_says_so_and_leaves_that_to_the_cluster(tmp_path: Path) -> None:
    verbs = {**VERBS, ("apps", "deployments"): VERBS["apps", "deployments"] - {"delete"}}
    world = World(tmp_path, ONE, verbs=verbs)
    with pytest.raises(UserError, match="cannot delete"):
        world.drive()
    assert world.status["phase"] == "Failed" and "cannot delete" in world.status["message"]
    # The Job of a controller that ends so goes an hour later, and with it the servers and this status.
    assert world.nodes.taken() and spec_of(world)["ttlSecondsAfterFinished"] == KEPT


def test_an_older_role_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    verbs = {**VERBS, ("batch", "jobs"): VERBS["batch", "jobs"] - {"patch"}}
    world = World(tmp_path, ONE, verbs=verbs)
    assert isinstance(world.cluster, FakeCluster)
    assert world.drive().code is ExitCode.DONE
    said = [line for line in world.said if "cannot patch" in line]
    assert said and all("compare the controller's Role with k8s/shared" in line for line in said)
