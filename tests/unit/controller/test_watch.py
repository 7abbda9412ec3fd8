"""The watch wakes the loop and does nothing else: whatever it does, rounds go on."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver.api import Body, NoReply
from scope_selfplay.driver.loop import drive, watch_jobs
from scope_selfplay.testing.fake_cluster import FakeCluster
from tests.unit.controller.worlds import World


def seen(version: str) -> Body:
    return {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": version}}}


class Watching(FakeCluster):
    """Every watch gives what is next in `ways`, then the thread is told to stop."""

    def __init__(self, stop: threading.Event, *ways: list[Body | NoReply]) -> None:
        super().__init__()
        self.ways, self.stop, self.opened = list(ways), stop, 0

    def watch(self, path: str, **rest: Any) -> Iterator[Body]:
        self.opened += 1
        if not self.ways:
            self.stop.set()
            return
        for each in self.ways.pop(0):
            if isinstance(each, NoReply):
                raise each
            yield each


GONE = NoReply("410 Gone")


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("ways", "wakes"),
    [
        ([[GONE], [GONE]], False),
        ([[seen("9"), GONE], [GONE]], True),
        ([[], []], False),
        ([[seen("9"), seen("3"), seen("7")]], True),
        ([[{}]], True),
    ],
    ids=["410", "a late 410", "silence", "out of order", "nonsense"],
)
def test_a_watch_that_fails_or_lies_is_opened_again(ways: list[list[Body | NoReply]], wakes: bool) -> None:
    stop, wake, pauses = threading.Event(), threading.Event(), list[float]()
    fake = Watching(stop, *ways)
    watch_jobs(fake, "scope/run=r1", wake, stop, pauses.append)
    assert fake.opened == len(ways) + 1
    assert wake.is_set() is wakes
    # Never in a tight loop, however soon the server ends it.
    assert all(5 <= pause <= 15 for pause in pauses)


@pytest.mark.fault(15)
def test_a_watch_that_hangs_holds_no_round_back(tmp_path: Path) -> None:
    world = World(tmp_path, only=["i01-train-solver"])
    hang = threading.Event()

    class Hanging(FakeCluster):
        def watch(self, path: str, **rest: Any) -> Iterator[Body]:
            hang.wait()
            yield from ()

    stop, wake = threading.Event(), threading.Event()
    watcher = threading.Thread(target=watch_jobs, args=(Hanging(), "", wake, stop, stop.wait), daemon=True)
    watcher.start()
    code = drive(world.controller(), lambda: world.cluster.advance(15), stop.is_set, world.said.append)
    assert code is ExitCode.DONE
    assert watcher.is_alive()
    stop.set()
    hang.set()


def test_a_stopped_loop_hands_its_lease_over_and_ends_with_143(tmp_path: Path) -> None:
    world, said = World(tmp_path), list[str]()
    controller, rounds = world.controller(), list[int]()

    def pause() -> None:
        rounds.append(1)
        world.cluster.advance(15)

    assert drive(controller, pause, lambda: len(rounds) == 3, said.append) is ExitCode.TERMINATED
    successor = world.controller(identity="pod-2")
    successor.round()
    assert successor.leadership.holds
    assert said == ["stopped; whoever starts next goes on from here"]
