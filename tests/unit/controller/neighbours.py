"""Several runs in one namespace, on the GPUs of one node: each has its controller, all share cluster and volume."""

from functools import partial
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import RUN, SERVER
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.loop import RESYNC, Controller
from scope_selfplay.driver.parts import Inputs
from scope_selfplay.testing.fake_nodes import PodEnding, SimulatedStages
from tests.unit.controller.examples import config_of
from tests.unit.controller.worlds import ONE, World


class Neighbours:
    """`r1`, `r2` ...; each stage Job publishes in its own run's folder."""

    def __init__(self, root: Path, count: int, data: dict[str, Any] | None = None) -> None:
        names = [f"r{number}" for number in range(1, count + 1)]
        self.world = World(root, data or ONE)
        self.stages = {name: SimulatedStages(root, name) for name in names}
        self.world.nodes.work = self._work
        self.ended: dict[str, ExitCode] = {}
        self.idle = self.in_vain = 0.0
        """The most seconds in a row in which no stage was at work; seconds of GPUs that were held meanwhile."""
        self.controllers: dict[str, Controller] = {}
        for name in names:
            config = config_of((data or ONE) | {"name": name})
            inputs = Inputs(config, "0123456789abcdef", (config.domain,))
            if name != "r1":
                self.world.add_controller_job(f"{name}-controller")
            self.controllers[name] = self.world.controller(
                identity=f"pod-{name}", job=f"{name}-controller", read=partial(Inputs, *inputs)
            )

    def drive(self, hours: float) -> None:
        """Rounds until all runs have ended: each controller's when one of its Jobs changes, as its watch would wake it,
        and every `RESYNC` seconds; in between, time jumps from change to change."""
        cluster, idle = self.world.cluster, 0.0
        start, due, seen = cluster.now, dict.fromkeys(self.controllers, 0.0), dict[str, int]()
        while due:
            assert cluster.now - start < hours * 3600, self.messages()
            for name in [
                name for name in due if cluster.now >= due[name] or self._version(name) != seen[name]
            ]:
                due[name] = cluster.now + RESYNC
                if (end := self.controllers[name].round()) is not None:
                    self.controllers[name].stop()
                    self.ended[name] = end.code
                    del due[name]
                seen[name] = self._version(name)
            passed = cluster.advance_to_change(min(due.values(), default=0.0) - cluster.now)
            works = self.working()
            idle = 0.0 if works else idle + passed
            self.idle = max(self.idle, idle)
            self.in_vain += 0.0 if works else passed * self.world.nodes.taken()

    def _version(self, run: str) -> int:
        """Changes with the Jobs of a run."""
        jobs = self.world.cluster.objects(ObjectKind.JOB).values()
        own = (job["metadata"] for job in jobs if job["metadata"]["labels"].get(RUN) == run)
        return sum(int(metadata["resourceVersion"]) for metadata in own)

    def working(self) -> set[str]:
        """Runs whose stage is at work now: its own pod runs, and its servers answer."""
        pods = self.world.cluster.objects(ObjectKind.POD).values()
        states = [(pod["metadata"]["labels"], pod["status"]["phase"]) for pod in pods]
        own = [labels for labels, phase in states if phase == "Running" and "job-name" in labels]
        return {labels[RUN] for labels in own if SERVER not in labels}

    def messages(self) -> dict[str, str]:
        maps = self.world.cluster.objects(ObjectKind.CONFIG_MAP)
        return {name: maps[f"{name}-status"]["data"]["message"] for name in self.controllers}

    def _work(self, job: Body, rank: int) -> PodEnding:
        return self.stages[job["metadata"]["labels"][RUN]](job, rank)
