"""What an API server may do to a call: 429, 500, no answer, also after it did what was asked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.testing.fake_cluster import ApiCall, ApiFault
from tests.unit.controller.worlds import World

pytestmark = [pytest.mark.integration, pytest.mark.fault(14)]
Report = Callable[[str, object], None]
ORDINARY = (
    ApiFault.TOO_MANY,
    ApiFault.SERVER_ERROR,
    ApiFault.SERVER_ERROR_AFTER,
    ApiFault.LOST,
    ApiFault.LOST_AFTER,
)


@pytest.mark.parametrize("fault", ORDINARY)
def test_every_third_call_fails_and_nothing_is_made_twice(
    tmp_path: Path, undisturbed: World, fault: ApiFault, record_property: Report
) -> None:
    world = World(tmp_path)
    world.cluster.faults = lambda call: fault if call.number % 3 == 2 else None
    assert world.drive().code is ExitCode.DONE
    record_property("injected", world.cluster.injected)
    assert world.end_state() == undisturbed.end_state()
    assert set(world.jobs_created.values()) == {1}


@pytest.mark.parametrize("fault", ORDINARY)
def test_every_write_fails_once_and_nothing_is_made_twice(
    tmp_path: Path, fault: ApiFault, record_property: Report
) -> None:
    world, failed = World(tmp_path), set[tuple[str, str, str | None]]()

    def once(call: ApiCall) -> ApiFault | None:
        key = (call.method, call.kind.value, call.name)
        if call.method == "GET" or key in failed:
            return None
        failed.add(key)
        return fault

    world.cluster.faults = once
    assert world.drive().code is ExitCode.DONE
    record_property("injected", world.cluster.injected)
    assert len(failed) > 40
    assert set(world.jobs_created.values()) == {1}
    assert len(set(world.stages.published)) == len(world.stages.published) == 6


def test_an_api_server_that_is_away_for_an_hour_ends_nothing(tmp_path: Path, record_property: Report) -> None:
    world = World(tmp_path, tick=15)
    world.cluster.faults = lambda call: ApiFault.LOST if 200 < world.cluster.now < 3800 else None
    assert world.drive(rounds=1000).code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    record_property("injected", world.cluster.injected)
    assert any("no success in 6 tries" in line for line in world.said)
