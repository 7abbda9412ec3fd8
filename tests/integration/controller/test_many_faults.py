"""Many faults of one kind, drawn from seeds: after each the run has ended as an undisturbed one does."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import ExitCode
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.parts import steps_of
from scope_selfplay.testing.fake_cluster import ApiCall, ApiFault
from tests.unit.controller.worlds import World

pytestmark = pytest.mark.integration

DAY = 86_400.0
AWAY = 600.0


def records(world: World) -> dict[str, bytes]:
    """What a run leaves: its stages as they were published, and what is left in the cluster."""
    state = world.end_state()
    published = "\n".join(state.pop("published")).encode()
    return {
        "published.jsonl": published,
        **{name: json.dumps(value).encode() for name, value in state.items()},
    }


def count(counts: FaultCounts, undisturbed: World, world: World) -> None:
    """A Job that was created twice is a duplicate, wherever it went since."""
    # Servers were deleted; their pods have ended by then.
    world.cluster.advance(60)
    counts.compare(records(undisturbed), records(world))
    counts.add(duplicated=sum(world.jobs_created.values()) - len(world.jobs_created))


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

    @property
    def leaders(self) -> int:
        return max(controller.leadership.fence for controller in self.controllers)


@pytest.mark.fault(12)
def test_two_controllers_between_each_others_calls_make_every_job_once(
    tmp_path: Path, undisturbed: World, counts: FaultCounts
) -> None:
    for seed in range(points(10, 100)):
        world = World(tmp_path / str(seed))
        two = Two(world, seed)
        world.cluster.faults = two.other_acts
        assert two.drive() is ExitCode.DONE
        count(counts, undisturbed, world)
        counts.add(reached=two.between, leaders=two.leaders)
    counts.check()
    assert counts.values["reached"] > 5 * counts.values["tried"]
    assert counts.values["leaders"] > 2 * counts.values["tried"]


@pytest.mark.fault(18)
def test_clocks_that_jump_make_no_job_twice(tmp_path: Path, undisturbed: World, counts: FaultCounts) -> None:
    """Each of two controllers has a clock of its own that jumps, forwards and back, by up to a day."""
    for seed in range(points(10, 100)):
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
    count_of = points(12, 60)
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
@pytest.mark.parametrize("takes", ["the Job's pod", "a server's pod", "all pods"])
def test_a_node_that_is_lost_in_any_stage_costs_that_attempt_alone(
    tmp_path: Path, undisturbed: World, counts: FaultCounts, takes: str
) -> None:
    for step in steps_of(undisturbed.config):
        world, lost = World(tmp_path / step.name), list[str]()
        controller = world.controller()
        while not lost:
            assert controller.round() is None
            world.cluster.advance(5)
            found = pods_of(world, step.name)
            kinds: dict[str, Callable[[], list[str]]] = {
                "the Job's pod": lambda found=found: found[:1],
                "a server's pod": lambda found=found: found[-1:],
                "all pods": lambda found=found: found,
            }
            if found:
                lost = kinds[takes]()
            for name in lost:
                world.cluster.erase(ObjectKind.POD, name)
        assert world.drive(controller).code is ExitCode.DONE
        again = [name for name in world.jobs_created if name.endswith("-a2")]
        is_own = takes != "a server's pod"
        assert [name for name in again if step.name in name] == again and len(again) == is_own, again
        counts.compare(stages(undisturbed), stages(world))
        counts.add(duplicated=sum(world.jobs_created.values()) - len(world.jobs_created))
    counts.check()


def stages(world: World) -> dict[str, bytes]:
    """The stages in the order in which they were published, whichever attempt it was."""
    names: list[Any] = [line.split(" by ")[0] for line in world.stages.published]
    return {"published.jsonl": "\n".join(names).encode()}
