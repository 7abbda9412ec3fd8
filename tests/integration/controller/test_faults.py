"""Kills around API calls, calls that fail, two controllers, clocks that jump, nodes that go: at the end is what is
always there. What is drawn comes from seeds."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.parts import steps_of
from scope_selfplay.testing.fake_cluster import ApiCall, ApiFault, Killed
from tests.unit.controller.worlds import World

Report = Callable[[str, object], None]
ORDINARY = (
    ApiFault.TOO_MANY,
    ApiFault.SERVER_ERROR,
    ApiFault.SERVER_ERROR_AFTER,
    ApiFault.LOST,
    ApiFault.LOST_AFTER,
)
DAY = 86_400.0
AWAY = 600.0


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("undisturbed"))
    assert world.drive().code is ExitCode.DONE
    return world


@pytest.mark.fault(14)
@pytest.mark.parametrize("which", ["every third call", "the first write of each kind to each object"])
@pytest.mark.parametrize("fault", ORDINARY)
def test_calls_that_fail_make_nothing_twice(
    tmp_path: Path, undisturbed: World, fault: ApiFault, which: str, record_property: Report
) -> None:
    world, written = World(tmp_path), set[tuple[str, str, str | None]]()

    def fails(call: ApiCall) -> ApiFault | None:
        write = (call.method, call.kind.value, call.name)
        is_first = call.method != "GET" and write not in written
        written.add(write)
        return fault if (call.number % 3 == 2 if which == "every third call" else is_first) else None

    world.cluster.faults = fails
    assert world.drive().code is ExitCode.DONE
    record_property("injected", world.cluster.injected)
    assert world.cluster.injected > 40
    assert world.end_state() == undisturbed.end_state()
    assert set(world.jobs_created.values()) == {1}


@pytest.mark.fault(13)
# Some 400 kills, where all are tried: minutes on a busy machine.
@pytest.mark.parametrize("fault", [ApiFault.KILLED, ApiFault.KILLED_AFTER])
def test_a_controller_killed_around_any_call_leaves_what_an_undisturbed_one_leaves(
    tmp_path: Path, undisturbed: World, fault: ApiFault, record_property: Report
) -> None:
    expected, calls = undisturbed.end_state(), len(undisturbed.cluster.calls)
    tried = points(40, calls)
    record_property("injected", tried)
    for number in (index * calls // tried for index in range(tried)):
        world = World(tmp_path / str(number))

        def kill(call: ApiCall, number: int = number) -> ApiFault | None:
            return fault if call.number == number else None

        world.cluster.faults = kill
        with pytest.raises(Killed):
            world.drive()
        world.drive()
        assert world.end_state() == expected, f"call {number}"
        assert set(world.jobs_created.values()) == {1}, f"call {number}"


@pytest.mark.fault(13)
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
    world.go_until(successor, lambda: successor.hand.leadership.holds)
    # The same pod leads on at once; another waits until the Lease has not moved for its whole length.
    waited = world.cluster.now - began
    assert waited <= 5 if identity == "pod-1" else 60 <= waited <= 75
    assert world.drive(successor).code is ExitCode.DONE


def count(counts: FaultCounts, undisturbed: World, world: World) -> None:
    """A Job that was created twice is a duplicate, wherever it went since."""
    # Servers were deleted; their pods have ended by then.
    world.cluster.advance(60)
    counts.compare(records(undisturbed), records(world))
    counts.add(duplicated=sum(world.jobs_created.values()) - len(world.jobs_created))


def records(world: World) -> dict[str, bytes]:
    """What a run leaves: its stages as they were published, and what is left in the cluster."""
    state = world.end_state()
    published = "\n".join(state.pop("published")).encode()
    return {"published.jsonl": published} | {
        name: json.dumps(value).encode() for name, value in state.items()
    }


class Two:
    """Two controllers of one run. Rounds are those of either by chance, with pauses up to longer than a Lease."""

    def __init__(
        self, world: World, seed: int, clocks: Sequence[Callable[[], float] | None] = (None, None)
    ) -> None:
        self.world, self.rng = world, Random(seed)
        self.controllers = [
            world.controller(identity=f"pod-{number}", clock=clock) for number, clock in enumerate(clocks)
        ]
        self.between = 0
        """Times that one acted between two calls of the other."""
        self._acting: int | None = None
        self._is_between = False

    def drive(self) -> ExitCode:
        for _ in range(2000):
            self._acting = self.rng.randrange(2)
            run_end = self.controllers[self._acting].round()
            if run_end is not None:
                return run_end.code
            self.world.cluster.advance(self.rng.choice((1, 5, 15, 15, 15, 70)))
        raise AssertionError(f"not ended: {self.world.status}")

    def other_acts(self, call: ApiCall) -> None:
        """Now and then this process stops, for up to longer than its Lease, and the other one goes on."""
        if self._acting is None or self._is_between or self.rng.random() > 0.05:
            return
        self._is_between = True
        self.between += 1
        self.world.cluster.advance(self.rng.choice((0, 1, 30, 70)))
        for _ in range(self.rng.choice((1, 1, 6))):
            self.controllers[1 - self._acting].round()
            self.world.cluster.advance(self.rng.choice((0, 15)))
        self._is_between = False


@pytest.mark.fault(12)
def test_two_controllers_between_each_others_calls_make_every_job_once(
    tmp_path: Path, undisturbed: World, counts: FaultCounts
) -> None:
    for seed in range(points(5, 100)):
        world = World(tmp_path / str(seed))
        two = Two(world, seed)
        world.cluster.faults = two.other_acts
        assert two.drive() is ExitCode.DONE
        count(counts, undisturbed, world)
        leaders = max(controller.hand.leadership.fence for controller in two.controllers)
        counts.add(reached=two.between, leaders=leaders)
    counts.check()
    assert counts.values["reached"] > 5 * counts.values["tried"]
    assert counts.values["leaders"] > 2 * counts.values["tried"]


@pytest.mark.fault(18)
def test_clocks_that_jump_make_no_job_twice(tmp_path: Path, undisturbed: World, counts: FaultCounts) -> None:
    """Each of two controllers has a clock of its own that jumps, forwards and back, by up to a day."""
    for seed in range(points(5, 100)):
        world, shifts = World(tmp_path / str(seed)), [0.0, 0.0]
        clocks = [lambda world=world, shifts=shifts, at=at: world.cluster.now + shifts[at] for at in (0, 1)]
        two = Two(world, seed, clocks)

        def jump(call: ApiCall, two: Two = two, shifts: list[float] = shifts) -> None:
            if two.rng.random() < 0.03:
                shifts[two.rng.randrange(2)] += two.rng.choice((-DAY, -3600, -61, 61, 3600, DAY))
                counts.add(reached=1)

        world.cluster.faults = jump
        assert two.drive() is ExitCode.DONE
        count(counts, undisturbed, world)
    counts.check()


@pytest.mark.fault(14)
def test_an_api_server_that_is_away_for_ten_minutes_from_any_call_on_changes_nothing(
    tmp_path: Path, undisturbed: World, counts: FaultCounts
) -> None:
    calls = len(undisturbed.cluster.calls)
    count_of = points(6, 60)
    for number in range(count_of):
        world, since = World(tmp_path / str(number)), list[float]()

        def away(
            call: ApiCall, world: World = world, since: list[float] = since, number: int = number
        ) -> ApiFault | None:
            if call.number == number * calls // count_of:
                since.append(world.cluster.now)
            return ApiFault.LOST if since and world.cluster.now < since[0] + AWAY else None

        world.cluster.faults = away
        assert world.drive().code is ExitCode.DONE
        assert world.cluster.injected > 20 and world.cluster.now > since[0] + AWAY
        count(counts, undisturbed, world)
    counts.check()


def pods_of(world: World, step: str) -> list[str]:
    """Running pods while the stage's Job works, the Job's own first."""
    pods = world.cluster.objects(ObjectKind.POD)
    running = [name for name, pod in pods.items() if pod["status"]["phase"] == "Running"]
    own = [name for name in running if step in name and "-a" in name]
    return [*own, *(name for name in running if name not in own)] if own else []


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "lost", [slice(1), slice(-1, None), slice(None)], ids=["the Job's pod", "a server's pod", "all pods"]
)
def test_a_node_that_is_lost_in_any_stage_costs_that_attempt_alone(
    tmp_path: Path, undisturbed: World, counts: FaultCounts, lost: slice
) -> None:
    for step in steps_of(undisturbed.config):
        world = World(tmp_path / step.name)
        controller = world.controller()
        world.go_until(controller, partial(pods_of, world, step.name))
        for name in pods_of(world, step.name)[lost]:
            world.cluster.erase(ObjectKind.POD, name)
        assert world.drive(controller).code is ExitCode.DONE
        again = [name for name in world.jobs_created if name.endswith("-a2")]
        is_own = lost != slice(-1, None)
        assert [name for name in again if step.name in name] == again and len(again) == is_own, again
        counts.compare(stages(undisturbed), stages(world))
        counts.add(duplicated=sum(world.jobs_created.values()) - len(world.jobs_created))
    counts.check()


def stages(world: World) -> dict[str, bytes]:
    """The stages in the order in which they were published, whichever attempt it was."""
    names = [line.split(" by ")[0] for line in world.stages.published]
    return {"published.jsonl": "\n".join(names).encode()}
