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


class Watching(FakeCluster):
    """Every watch behaves in the next of several ways, then the thread is told to stop."""

    def __init__(self, stop: threading.Event, *ways: str) -> None:
        super().__init__()
        self.ways = list(ways)
        self.stop = stop
        self.opened = 0

    def watch(self, path: str, **rest: Any) -> Iterator[Body]:
        self.opened += 1
        way = self.ways.pop(0) if self.ways else "stop"
        match way:
            case "410":
                raise NoReply("410 Gone")
            case "late 410":
                yield {"type": "ADDED", "object": {"metadata": {"resourceVersion": "9"}}}
                raise NoReply("410 Gone")
            case "out of order":
                for version in ("9", "3", "7"):
                    yield {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": version}}}
            case "nonsense":
                yield {}
            case "stop":
                self.stop.set()


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("ways", "wakes"),
    [
        (("410", "410"), False),
        (("late 410", "410"), True),
        (("silent", "silent"), False),
        (("out of order",), True),
        (("nonsense",), True),
    ],
)
def test_a_watch_that_fails_or_lies_is_opened_again(ways: tuple[str, ...], wakes: bool) -> None:
    stop, wake, pauses = threading.Event(), threading.Event(), list[float]()
    fake = Watching(stop, *ways)
    watch_jobs(fake, "scope/run=r1", wake, stop, pauses.append)
    assert fake.opened == len(ways) + 1
    assert wake.is_set() is wakes
    # Never in a tight loop, however soon the server ends it.
    assert all(5 <= pause <= 15 for pause in pauses)


@pytest.mark.fault(15)
def test_a_watch_that_hangs_holds_no_round_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.have_done_all_but("i01-train-solver")
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
