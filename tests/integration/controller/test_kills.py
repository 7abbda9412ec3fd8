"""The controller is killed around every API call and started again: what is left at the end is what it always is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.testing.fake_cluster import ApiCall, ApiFault, Killed
from tests.unit.controller.worlds import World

# Some 400 kills: minutes on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.fault(13), pytest.mark.timeout(900)]
Report = Callable[[str, object], None]


def test_a_controller_killed_around_any_call_leaves_what_an_undisturbed_one_leaves(
    tmp_path: Path, undisturbed: World, record_property: Report
) -> None:
    expected, calls = undisturbed.end_state(), len(undisturbed.cluster.calls)
    kills = [(fault, number) for fault in (ApiFault.KILLED, ApiFault.KILLED_AFTER) for number in range(calls)]
    record_property("injected", len(kills))
    for fault, number in kills:
        state, created = _with_kill(tmp_path / f"{fault}-{number}", number, fault)
        assert state == expected, f"{fault} at call {number}"
        assert set(created.values()) == {1}, f"{fault} at call {number}: {created}"


def test_a_controller_killed_again_and_again_comes_to_the_same_end(
    tmp_path: Path, undisturbed: World, record_property: Report
) -> None:
    world, kills = World(tmp_path), 0
    world.cluster.faults = lambda call: ApiFault.KILLED_AFTER if call.number % 13 == 12 else None
    for _ in range(100):
        try:
            assert world.drive().code is ExitCode.DONE
            break
        except Killed:
            kills += 1
            world.cluster.advance(5)
    record_property("injected", kills)
    assert 15 < kills < 100
    assert world.end_state() == undisturbed.end_state()
    assert set(world.jobs_created.values()) == {1}


@pytest.mark.parametrize("identity", ["pod-1", "pod-2"])
def test_a_killed_leader_is_followed_by_a_restarted_container_or_another_pod(
    tmp_path: Path, identity: str
) -> None:
    world = World(tmp_path)
    world.cluster.faults = lambda call: ApiFault.KILLED if call.number == 60 else None
    with pytest.raises(Killed):
        world.drive()
    began = world.cluster.now
    successor = world.controller(identity=identity)
    while not successor.leadership.holds:
        successor.round()
        world.cluster.advance(5)
    # The same pod leads on at once; another waits until the Lease has not moved for its whole length.
    waited = world.cluster.now - began
    assert waited <= 5 if identity == "pod-1" else 60 <= waited <= 75
    assert world.drive(successor).code is ExitCode.DONE


def _with_kill(root: Path, number: int, fault: ApiFault) -> tuple[dict[str, Any], dict[str, int]]:
    world = World(root)

    def once(call: ApiCall) -> ApiFault | None:
        return fault if call.number == number else None

    world.cluster.faults = once
    try:
        world.drive()
    except Killed:
        world.drive()
    return world.end_state(), world.jobs_created
