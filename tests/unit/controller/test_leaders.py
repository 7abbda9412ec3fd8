"""Two controllers at once, an old leader that wakes up, and clocks that lie."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver.api import LeaseLost, ObjectKind
from tests.unit.controller.worlds import World


@pytest.mark.fault(12)
@pytest.mark.integration
def test_an_old_leader_that_wakes_up_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    old, new = world.controller(identity="pod-1"), world.controller(identity="pod-2")
    world.go(old, 30, step=10)
    fence = old.leadership.fence
    # The old leader sleeps.
    world.go(new, 100, step=10)
    assert new.leadership.holds
    before = len(world.cluster.calls)
    with pytest.raises(LeaseLost):
        old.cluster.delete(ObjectKind.DEPLOYMENT, "r1-judge", "uid-1")
    assert old.round() is None
    assert {call.method for call in world.cluster.calls[before:]} == {"GET"}
    assert new.leadership.fence == fence + 1
    assert world.drive(new).code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}


@pytest.mark.fault(12)
def test_a_leader_that_does_not_know_that_it_was_replaced_fails_at_the_status(tmp_path: Path) -> None:
    world = World(tmp_path)
    # A process that was stopped between the check of its Lease and its write sees no time pass.
    stopped: list[float] = []
    old = world.controller(clock=lambda: stopped[0] if stopped else world.cluster.now)
    new = world.controller(identity="pod-2")
    for _ in range(4):
        world.cluster.advance(20)
        old.round()
    stopped.append(world.cluster.now)
    world.go(new, 150, step=10)
    assert new.leadership.holds
    world.cluster.remove(ObjectKind.DEPLOYMENT, "r1-judge")
    created = dict(world.cluster.created)
    old.round()
    assert world.said[-1] == "configmaps r1-status was changed by somebody else; looking again"
    assert world.cluster.created == created


@pytest.mark.fault(18)
@pytest.mark.integration
@pytest.mark.parametrize(
    "skew",
    [lambda now: now + 86_400, lambda now: now * 1.05, lambda now: now if now < 100 else now - 3000],
    ids=["a day ahead", "five percent fast", "steps back"],
)
def test_no_clock_makes_two_leaders(tmp_path: Path, skew: Callable[[float], float]) -> None:
    world = World(tmp_path)
    first = world.controller(identity="pod-1")
    second = world.controller(identity="pod-2", clock=lambda: skew(world.cluster.now))
    for _ in range(60):
        for controller in (first, second):
            controller.round()
        assert not (first.leadership.holds and second.leadership.holds)
        world.cluster.advance(10)
    assert set(world.jobs_created.values()) == {1}


def test_the_token_grows_with_every_leader_and_a_stop_hands_over_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    fences = []
    for number in range(4):
        controller = world.controller(identity=f"pod-{number}")
        controller.round()
        assert controller.leadership.holds
        fences.append(controller.leadership.fence)
        controller.stop()
        world.cluster.advance(1)
    assert fences == [1, 2, 3, 4]
