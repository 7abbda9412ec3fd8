"""A stage that several Jobs share, while the number of shards is edited: each document keeps one owner."""

from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.testing.fake_nodes import PodEnding
from tests.unit.controller.examples import config_of
from tests.unit.controller.worlds import ONE, World

FIRST, SECOND = "i00-make-tasks", "i01-make-tasks"
EDITS = [(4, 2), (4, 8), (4, 1), (1, 4)]


@pytest.mark.fault(19)
@pytest.mark.parametrize(("before", "after"), EDITS)
def test_a_stage_ends_with_the_shards_that_it_began_with_and_the_next_takes_the_new_number(
    tmp_path: Path, before: int, after: int
) -> None:
    world = _running(tmp_path, before)
    _edit(world, after)
    assert world.drive().code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    assert _made(world, FIRST) == _names(FIRST, before)
    assert _made(world, SECOND) == _names(SECOND, after)


@pytest.mark.fault(19)
@pytest.mark.parametrize(("before", "after"), EDITS)
def test_an_edit_between_two_attempts_does_not_change_the_shards(
    tmp_path: Path, before: int, after: int
) -> None:
    world, failed = World(tmp_path, _sharing(before), only=[FIRST]), list[str]()
    last = _names(FIRST, before)[before - 1]

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        failed.append(job["metadata"]["name"])
        return PodEnding(75, message="judge is down")

    world.work_on(last, work)
    controller = world.controller()
    world.go_until(controller, lambda: failed)
    world.cluster.advance(5)
    _edit(world, after)
    assert world.drive(controller).code is ExitCode.DONE
    assert sorted(_made(world, FIRST)) == sorted([*_names(FIRST, before), last.removesuffix("a1") + "a2"])


def test_running_shards_carry_their_number_in_their_labels(tmp_path: Path) -> None:
    world = _running(tmp_path, 4)
    world.cluster.remove(ObjectKind.CONFIG_MAP, "r1-status")
    _edit(world, 2)
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE
    assert _made(world, FIRST) == _names(FIRST, 4)


def test_a_new_controller_job_begins_with_the_new_number(tmp_path: Path) -> None:
    world = _running(tmp_path, 4)
    _edit(world, 2)
    world.cluster.remove(ObjectKind.JOB, "r1-controller")
    world.cluster.advance(60)
    world.add_controller_job()
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE
    made = {name: count for name, count in world.jobs_created.items() if FIRST in name}
    assert made == dict.fromkeys(_names(FIRST, 4), 1) | dict.fromkeys(_names(FIRST, 2)[:-1], 2)


def _running(root: Path, shards: int) -> World:
    """A world in which the Jobs of the first task making run."""
    world = World(root, _sharing(shards), only=[FIRST, SECOND])
    controller = world.controller()
    world.go_until(controller, lambda: len(world.status.get("jobs", "").split()) == shards)
    controller.stop()
    return world


def _sharing(shards: int) -> dict[str, Any]:
    return ONE | {"cluster": ONE["cluster"] | {"make_tasks": {"shards": shards}}}


def _edit(world: World, shards: int) -> None:
    config: RunConfig = config_of(_sharing(shards))
    world.inputs = world.inputs._replace(config=config)


def _names(step: str, shards: int) -> list[str]:
    parts = [f"r1-{step}-s{shard:02d}-a1" for shard in range(shards)] if shards > 1 else []
    return [*parts, f"r1-{step}-a1"]


def _made(world: World, step: str) -> list[str]:
    return [name for name in world.jobs_created if step in name]
