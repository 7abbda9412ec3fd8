"""Run configs, and a whole run on the fake cluster: controller, nodes and volume; and what is left of it at the end."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from scope_selfplay.cluster.pods import ManifestContext, Owner
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.kubernetes import KubernetesHand
from scope_selfplay.driver.loop import Clock, Controller
from scope_selfplay.driver.parts import Inputs, RunEnd, steps_of
from scope_selfplay.store.folder import RunFolder, StageManifest
from scope_selfplay.testing.fake_cluster import FakeCluster
from scope_selfplay.testing.fake_nodes import FakeNodes, SimulatedStages, Work

PAPER: dict[str, Any] = {
    "name": "r1",
    "domain": "wikipedia",
    "model": {"path": "/data/models/Qwen2.5-7B-Instruct"},
    "judge": {"kind": "model", "endpoint": {"base_url": "http://r1-judge:8000/v1"}},
    "cluster": {
        "images": {"worker": "registry.example/scope:1", "trainer": "registry.example/scope-train:1"},
        "judge": {"model": "/data/models/Qwen3-8B", "args": ["--max-model-len", "32768"]},
        "retriever": {"index": "/data/index/wiki-18"},
    },
}


def sized(**amounts: str) -> dict[str, Any]:
    """A part of a run whose containers ask for these amounts, not for what goes with their GPUs."""
    resources = {"requests": amounts, "limits": amounts}
    return {"pod": {"spec": {"containers": [{"name": "main", "resources": resources}]}}}


TINY: dict[str, Any] = PAPER | {
    "name": "tiny",
    "model": {"path": "embedded"},
    "cluster": {"tiny": True, "retriever": {"cpu": "1", "memory": "1Gi"}},
}


def config_of(data: dict[str, Any], **changes: Any) -> RunConfig:
    return parse_config(data | changes)


def context_of(config: RunConfig, fence: int = 1) -> ManifestContext:
    owner = Owner(f"{config.name}-controller", "11111111-2222-3333-4444-555555555555")
    return ManifestContext(config, "0123456789abcdef", (config.domain,), owner, fence)


ONE = PAPER | {"iterations": 1}


class World:
    """`faults`, `nodes` and `inputs` may be changed while it runs. `only`: every other stage is done before."""

    def __init__(
        self,
        root: Path,
        data: dict[str, Any] | None = None,
        *,
        only: Sequence[str] = (),
        work: Work | None = None,
        **cluster: Any,
    ) -> None:
        self.root = root
        self.config: RunConfig = config_of(data or ONE)
        self.inputs = Inputs(self.config, "0123456789abcdef", (self.config.domain,))
        self.cluster = FakeCluster(**{"tick": 5.0, **cluster})
        self.stages = SimulatedStages(root, self.config.name)
        self.nodes = FakeNodes(self.cluster, work or self.stages)
        self.said: list[str] = []
        self.add_controller_job()
        if only:
            self.have_done_all_but(*only)

    def have_done_all_but(self, *names: str) -> None:
        for step in steps_of(self.config):
            if step.name not in names:
                folder = self.stages.folder.stage(*step).path
                folder.mkdir(parents=True)
                manifest = StageManifest(stage=step.stage.value, iteration=step.iteration, spec_hash="before")
                (folder / "manifest.json").write_text(manifest.model_dump_json())
                (folder / "ratings.json").write_text('{"promoted": true}')

    def work_on(self, step: str, work: Work) -> None:
        """What pods of this stage do; those of all others publish."""
        own = self.stages
        self.nodes.work = lambda job, rank: (work if step in job["metadata"]["name"] else own)(job, rank)

    def add_controller_job(self, name: str = "", **labels: str) -> str:
        name = name or f"{self.config.name}-controller"
        labels = {"scope/run": self.config.name} | labels
        status = {"startTime": datetime.fromtimestamp(self.cluster.now, UTC).isoformat()}
        body = {"kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
        self.cluster.put(ObjectKind.JOB, body)
        return name

    def controller(
        self,
        *,
        identity: str = "pod-1",
        job: str = "",
        only: int | None = None,
        clock: Callable[[], float] | None = None,
        read: Callable[[], Inputs] | None = None,
    ) -> Controller:
        read = read or (lambda: self.inputs)
        time = Clock(clock or (lambda: self.cluster.now), self.cluster.advance, lambda: self.cluster.now)
        config, say = read().config, self.said.append
        folder = RunFolder(self.root / config.name)
        hand = KubernetesHand(
            self.cluster,
            config,
            folder,
            job=job or f"{self.config.name}-controller",
            identity=identity,
            clock=time,
            rng=Random(0),
            say=say,
        )
        return Controller(hand, read, folder, time.monotonic, only_iteration=only, say=say)

    def running(self) -> Controller:
        """A controller while the Job of its stage runs."""
        controller = self.controller()
        self.go_until(controller, lambda: self.status.get("jobs"))
        return controller

    def drive(self, controller: Controller | None = None, *, rounds: int = 400) -> RunEnd:
        """Rounds until the run has ended."""
        controller = controller or self.controller()
        for _ in range(rounds):
            run_end = controller.round()
            if run_end is not None:
                controller.stop()
                return run_end
            self.cluster.advance(15)
        raise AssertionError(f"not ended after {rounds} rounds; last: {self.status.get('message')}")

    def go(self, controller: Controller, seconds: float, *, step: float = 20) -> None:
        """Rounds for so long, in which the run does not end."""
        end = self.cluster.now + seconds
        self.go_until(controller, lambda: self.cluster.now >= end, step=step)

    def go_until(self, controller: Controller, holds: Callable[[], object], *, step: float = 5) -> None:
        while not holds():
            assert controller.round() is None, self.status.get("message")
            self.cluster.advance(step)

    @property
    def status(self) -> dict[str, str]:
        found = self.cluster.objects(ObjectKind.CONFIG_MAP).get(f"{self.config.name}-status")
        data: dict[str, str] = found["data"] if found else {}
        return data

    @property
    def jobs_created(self) -> dict[str, int]:
        """How often each stage Job was created, in order."""
        return {
            name: count
            for (kind, name), count in self.cluster.created.items()
            if kind is ObjectKind.JOB and "-i0" in name and not name.endswith("-controller")
        }

    @property
    def reasons(self) -> list[str]:
        return [body["reason"] for body in self.cluster.objects(ObjectKind.EVENT).values()]

    @property
    def messages(self) -> str:
        return "\n".join(body["message"] for body in self.cluster.objects(ObjectKind.EVENT).values())

    def end_state(self) -> dict[str, Any]:
        """What must be the same however often the controller was killed on the way."""
        return {
            "jobs": sorted(self.cluster.objects(ObjectKind.JOB)),
            "servers": sorted(self.cluster.objects(ObjectKind.DEPLOYMENT)),
            "services": sorted(self.cluster.objects(ObjectKind.SERVICE)),
            "pods": sorted(pod.rsplit("-", 1)[0] for pod in self.cluster.objects(ObjectKind.POD)),
            "published": self.stages.published,
            "status": {key: self.status.get(key) for key in ("phase", "progress", "message", "step")},
        }
