"""The plan without a controller around it: equal situations give equal plans, and nothing that went in is changed."""

from pathlib import Path

from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.records import TaskTarget
from tests.unit.controller.worlds import World


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
