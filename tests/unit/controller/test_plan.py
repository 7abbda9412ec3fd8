"""The plan without a controller around it: equal situations give equal plans, and nothing that went in is changed."""

import copy
from pathlib import Path

from scope_selfplay.cluster.pods import ManifestContext, Owner
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.observed import ObservedCluster, observe
from scope_selfplay.driver.parts import Apply, Create, DesiredSteps, read_volume
from scope_selfplay.driver.plan import next_actions
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.records import TaskTarget
from tests.unit.controller.worlds import World


def test_equal_situations_give_equal_plans_and_stay_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path)
    controller, created, applied = world.controller(), 0, 0
    uid = world.cluster.objects(ObjectKind.JOB)["r1-controller"]["metadata"]["uid"]
    context = ManifestContext(
        world.config, "0123456789abcdef", ("wikipedia",), Owner("r1-controller", uid), 1
    )
    while controller.round() is None:
        world.cluster.advance(10)
        observed, volume = _observed(world), read_volume(world.stages.folder, world.config)
        before, waited = copy.deepcopy(observed), {"ending/x": 5.0}
        plans = [next_actions(DesiredSteps(context), observed, volume, waited) for _ in range(2)]
        assert plans[0] == plans[1]
        assert (observed, waited) == (before, {"ending/x": 5.0})
        created += sum(isinstance(action, Create) for action in plans[0].actions)
        applied += sum(isinstance(action, Apply) for action in plans[0].actions)
    assert created and applied


def test_the_status_says_which_iterations_ended_below_their_target(tmp_path: Path) -> None:
    world = World(tmp_path)
    controller = world.controller()
    while controller.round() is None:
        world.cluster.advance(10)
        for iteration, accepted in ((1, 3000), (2, 5120)):
            folder = world.stages.folder.stage(iteration, Stage.TASKS)
            if folder.manifest is not None:
                reached = TaskTarget(accepted=accepted, target=5120)
                write_atomic(folder.target, reached.model_dump_json())
    assert world.status["below_target"] == "iteration 1: 3000 of 5120 tasks"


def _observed(world: World) -> ObservedCluster:
    kinds = (ObjectKind.JOB, ObjectKind.POD, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE)
    jobs, pods, deployments, services = (list(world.cluster.objects(kind).values()) for kind in kinds)
    return observe(world.config.name, jobs, pods, deployments, services, world.status)
