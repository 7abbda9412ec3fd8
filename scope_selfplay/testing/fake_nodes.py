"""What happens in a fake cluster while time passes: pods are made, scheduled onto GPUs, run, and end.

One node with a number of GPUs. A Job's pod runs for a while and then ends as `work` says; a Deployment's pod becomes
ready after a while and stays. `SimulatedStages` publishes the manifest of a stage whose Job ends well.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scope_selfplay.cluster.pods import Label, RunStage
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.observed import step_of
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.testing.fake_cluster import FakeCluster

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class PodEnding:
    """How one pod ends; the fields of `status` replace those of the pod's own status."""

    exit_code: int = 0
    reason: str = ""
    """Of the container: `OOMKilled`, say."""
    message: str = ""
    status: Body = field(default_factory=dict)


Work = Callable[[Body, int], PodEnding | None]
"""(body of a Job, rank of its pod) -> how the pod ends now, or None while it goes on."""


class SimulatedStages:
    """The shared volume, and Jobs that do nothing but publish their stage's manifest."""

    def __init__(self, root: Path, run: str) -> None:
        self.folder = RunFolder(root / run)
        self.published: list[str] = []
        """`<step> by <job>`, for every manifest that a Job tried to publish and won."""

    def __call__(self, job: Body, rank: int) -> PodEnding:
        labels = job["metadata"]["labels"]
        step = step_of(labels)
        if step is not None and rank == 0 and Label.SHARD not in labels:
            self.publish(step, job["metadata"]["name"])
        return PodEnding()

    def publish(self, step: RunStage, by: str = "") -> None:
        """Publish as a stage does: by exclusive create, so that the first one wins."""
        folder = self.folder.stage(*step)
        folder.path.mkdir(parents=True, exist_ok=True)
        if step.stage is Stage.COMPARE and not (folder.path / "ratings.json").exists():
            write_atomic(folder.path / "ratings.json", '{"promoted": true}\n')
        manifest = StageManifest(stage=step.stage.value, iteration=step.iteration, spec_hash=by or step.name)
        publish_manifest(folder.path, manifest)
        found = folder.manifest
        if found is not None and found.spec_hash == manifest.spec_hash:
            self.published.append(f"{step.name} by {by}")


class FakeNodes:
    """One node. `work` says how pods of Jobs end; pods for which `never_ends` is true ignore their deletion, and
    those for which `never_starts` is wait on the node for a volume that does not come."""

    def __init__(self, cluster: FakeCluster, work: Work) -> None:
        """Servers answer `startup` seconds after they run, stages work for `seconds`, pods end after `grace`."""
        self.work = work
        self.gpus = 8
        self.seconds = 20.0
        self.startup = 10.0
        self.grace = 3.0
        self.never_ends: Callable[[str], bool] = lambda name: False
        self.never_starts: Callable[[str], bool] = lambda name: False
        self.leaves_alone: Callable[[str], bool] = lambda name: False
        """Pods whose status a test writes itself."""
        self.peak = 0
        """Most GPUs that were taken at once."""
        self._cluster = cluster
        self._since: dict[str, float] = {}
        """Pod name and state -> when it came into that state."""
        cluster.on_advance.append(self._tick)

    def _tick(self, seconds: float) -> None:
        for name, job in self._cluster.objects(ObjectKind.JOB).items():
            self._drive_job(name, job)
        for name, deployment in self._cluster.objects(ObjectKind.DEPLOYMENT).items():
            self._drive_deployment(name, deployment)
        for name, pod in self._cluster.objects(ObjectKind.POD).items():
            self._drive_pod(name, pod)
        self.peak = max(self.peak, self.taken())
        pods = self._cluster.objects(ObjectKind.POD)
        self._since = {key: when for key, when in self._since.items() if key.split("/")[0] in pods}

    def taken(self) -> int:
        """GPUs that scheduled pods hold now."""
        pods = self._cluster.objects(ObjectKind.POD).values()
        return sum(gpus_of_pod(pod) for pod in pods if pod["spec"].get("nodeName") and _is_alive(pod))

    def _drive_job(self, name: str, job: Body) -> None:
        status = job.setdefault("status", {})
        if status.get("conditions"):
            ended = float(status["endedAt"])
            if self._cluster.now - ended >= job["spec"].get("ttlSecondsAfterFinished", float("inf")):
                self._cluster.remove(ObjectKind.JOB, name)
            return
        if job["spec"].get("suspend"):
            return
        began = float(job["metadata"]["creationTimestamp"])
        if self._cluster.now - began >= job["spec"].get("activeDeadlineSeconds", float("inf")):
            self._finish_job(name, job, "Failed", "DeadlineExceeded")
            return
        if "template" not in job["spec"]:
            return
        count = job["spec"].get("completions", 1)
        names = [f"{name}-{rank}-{job['metadata']['uid']}" for rank in range(count)]
        pods = [self._pod_of(job, pod_name, rank) for rank, pod_name in enumerate(names)]
        phases = [pod["status"]["phase"] for pod in pods if pod is not None]
        # Their node went, and they with it.
        is_lost = any(
            pod is None and self._cluster.created.get((ObjectKind.POD, pod_name))
            for pod, pod_name in zip(pods, names, strict=True)
        )
        if "Failed" in phases or is_lost:
            self._finish_job(name, job, "Failed", "BackoffLimitExceeded")
        elif len(phases) == count and set(phases) == {"Succeeded"}:
            self._finish_job(name, job, "Complete", "")

    def _finish_job(self, name: str, job: Body, condition: str, reason: str) -> None:
        conditions = [{"type": condition, "status": "True", "reason": reason}]
        job["status"] = {"conditions": conditions, "endedAt": self._cluster.now}
        self._cluster.touch(ObjectKind.JOB, name)
        for pod in self._owned(job):
            if _is_alive(pod):
                self._cluster.remove(ObjectKind.POD, pod["metadata"]["name"])

    def _drive_deployment(self, name: str, deployment: Body) -> None:
        generation = deployment["metadata"]["generation"]
        pods = self._owned(deployment)
        for pod in pods:
            if pod["metadata"]["annotations"]["generation"] != str(generation):
                self._cluster.remove(ObjectKind.POD, pod["metadata"]["name"])
        prefix, problems = f"{name}-{deployment['metadata']['uid']}-{generation}", list[Body]()
        # One whose node went with it is made again.
        gone = sum(pod.startswith(prefix) for kind, pod in self._cluster.created if kind is ObjectKind.POD)
        pod_name = f"{prefix}r{gone}" if gone else prefix
        if not pods and self._pod_of(deployment, pod_name, None) is None:
            problems = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]
        status = {
            "observedGeneration": generation,
            "readyReplicas": sum(_is_ready(pod) for pod in pods),
            "updatedReplicas": min(1, len(pods)),
            "conditions": problems,
        }
        if deployment.get("status") != status:
            deployment["status"] = status
            self._cluster.touch(ObjectKind.DEPLOYMENT, name)

    def _pod_of(self, owner: Body, name: str, rank: int | None) -> Body | None:
        """The pod of this name, made now if it never was; None when a quota has no room or it is gone."""
        pods = self._cluster.objects(ObjectKind.POD)
        if name in pods:
            return pods[name]
        is_full = len(pods) >= self._cluster.quota.get("pods", float("inf"))
        if is_full or self._cluster.created.get((ObjectKind.POD, name)):
            return None
        template = owner["spec"]["template"]
        labels = dict(template["metadata"]["labels"])
        if rank is not None:
            labels["job-name"] = owner["metadata"]["name"]
        reference = {"kind": owner["kind"], "uid": owner["metadata"]["uid"], "controller": True}
        metadata = {
            "name": name,
            "labels": labels,
            "annotations": {"generation": str(owner["metadata"]["generation"]), "rank": str(rank)},
            "ownerReferences": [reference],
        }
        body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        return self._cluster.put(ObjectKind.POD, body)

    def _drive_pod(self, name: str, pod: Body) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            if self._in_state(name, "ending") >= self.grace and not self.never_ends(name):
                self._cluster.erase(ObjectKind.POD, name)
            return
        if self.leaves_alone(name):
            return
        match pod["status"]["phase"]:
            case "Pending":
                self._schedule(name, pod)
            case "Running":
                self._run(name, pod)

    def _schedule(self, name: str, pod: Body) -> None:
        is_placed = bool(pod["spec"].get("nodeName"))
        if not is_placed and self.taken() + gpus_of_pod(pod) > self.gpus:
            message = f"0/1 nodes are available: 1 Insufficient {GPU}."
            condition = {"type": "PodScheduled", "status": "False", "message": message}
            self._set(name, pod, "Pending", conditions=[condition])
            return
        pod["spec"]["nodeName"] = "fake"
        if self.never_starts(name):
            waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
            self._set(name, pod, "Pending", conditions=[], containerStatuses=[waiting])
        else:
            self._set(name, pod, "Running", conditions=[])

    def _run(self, name: str, pod: Body) -> None:
        running = self._in_state(name, "running")
        reference = pod["metadata"]["ownerReferences"][0]
        owners = self._cluster.objects(ObjectKind(reference["kind"])).values()
        owner = next((owner for owner in owners if owner["metadata"]["uid"] == reference["uid"]), None)
        if owner is None:
            return
        if Label.SERVER in pod["metadata"]["labels"]:
            if running >= self.startup and not _is_ready(pod):
                self._set(name, pod, "Running", conditions=[{"type": "Ready", "status": "True"}])
            return
        if running < self.seconds:
            return
        ending = self.work(owner, int(pod["metadata"]["annotations"]["rank"]))
        if ending is not None:
            terminated = {"exitCode": ending.exit_code, "reason": ending.reason, "message": ending.message}
            container = {"name": "main", "state": {"terminated": terminated}}
            phase = "Failed" if ending.exit_code or ending.status else "Succeeded"
            self._set(name, pod, phase, **{"containerStatuses": [container], **ending.status})

    def _set(self, name: str, pod: Body, phase: str, /, **rest: Any) -> None:
        status = {"phase": phase, **rest}
        if pod["status"] != status:
            pod["status"] = status
            self._cluster.touch(ObjectKind.POD, name)

    def _in_state(self, name: str, state: str) -> float:
        return self._cluster.now - self._since.setdefault(f"{name}/{state}", self._cluster.now)

    def _owned(self, owner: Body) -> list[Body]:
        uid = owner["metadata"]["uid"]
        pods = self._cluster.objects(ObjectKind.POD).values()
        return [pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid]


def gpus_of_pod(pod: Body) -> int:
    """What a pod, or a template of pods, asks for."""
    containers = pod["spec"]["containers"]
    return sum(int(container["resources"]["limits"].get(GPU, 0)) for container in containers)


def _is_alive(pod: Body) -> bool:
    return pod["status"]["phase"] in ("Pending", "Running")


def _is_ready(pod: Body) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
