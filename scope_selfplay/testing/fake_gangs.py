"""JobSet and Kueue in a fake cluster: JobSets that wait in a queue, are admitted as a whole, and make their Jobs.

What a run of `cluster.gang` relies on: Kueue unsuspends the oldest JobSet whose GPUs all fit into what is free of the
queue's quota; JobSet makes a Job of each of its parts (those that depend on another one later), ends with its target,
fails with any of its Jobs, and deletes what still runs then. `fake_nodes` runs the pods.
"""

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.gangs import jobs_of
from scope_selfplay.controller.manifests import QUEUE
from scope_selfplay.controller.observed import JOB_SET
from scope_selfplay.testing.fake_cluster import FakeCluster
from scope_selfplay.testing.fake_nodes import gpus_of_pod


class FakeGangs:
    """`gpus` is the quota of the queue `queue`; JobSets of other queues wait for ever."""

    def __init__(self, cluster: FakeCluster, *, queue: str = "scope", gpus: int = 8) -> None:
        self.queue = queue
        self.gpus = gpus
        self._cluster = cluster
        cluster.on_advance.insert(0, self._tick)

    def preempt(self, name: str) -> None:
        """Take a JobSet's GPUs away: it is suspended, and its Jobs go."""
        self._cluster.objects(ObjectKind.JOB_SET)[name]["spec"]["suspend"] = True
        self._cluster.touch(ObjectKind.JOB_SET, name)
        self._end_jobs(name)

    def _tick(self, seconds: float) -> None:
        gangs = self._cluster.objects(ObjectKind.JOB_SET)
        for name, body in gangs.items():
            if not body["spec"]["suspend"] and not _is_over(body):
                self._drive(name, body)
        taken = sum(
            gpus_of(body) for body in gangs.values() if not body["spec"]["suspend"] and not _is_over(body)
        )
        for name, body in gangs.items():
            fits = taken + gpus_of(body) <= self.gpus
            if body["spec"]["suspend"] and fits and body["metadata"]["labels"].get(QUEUE) == self.queue:
                body["spec"]["suspend"] = False
                self._cluster.touch(ObjectKind.JOB_SET, name)
                taken += gpus_of(body)

    def _drive(self, name: str, body: Body) -> None:
        found = self._cluster.objects(ObjectKind.JOB)
        parts = body["spec"]["replicatedJobs"]
        ended = {part["name"]: _condition(found.get(f"{name}-{part['name']}-0")) for part in parts}
        for part, job in zip(parts, jobs_of(body), strict=True):
            earlier = [other["name"] for other in part.get("dependsOn", ())]
            if job["metadata"]["name"] not in found and all(ended[other] == "Complete" for other in earlier):
                self._make(name, body, job)
        targets = body["spec"]["successPolicy"]["targetReplicatedJobs"]
        if "Failed" in ended.values():
            self._finish(name, body, "Failed")
        elif all(ended[target] == "Complete" for target in targets):
            self._finish(name, body, "Completed")

    def _make(self, name: str, body: Body, job: Body) -> None:
        job["metadata"]["labels"] = job["metadata"]["labels"] | {JOB_SET: name}
        owner = {"kind": "JobSet", "uid": body["metadata"]["uid"], "controller": True}
        job["metadata"]["ownerReferences"] = [owner]
        made = self._cluster.put(ObjectKind.JOB, job)
        made["spec"]["template"]["metadata"]["labels"][JOB_SET] = name

    def _finish(self, name: str, body: Body, condition: str) -> None:
        body["status"] = {"conditions": [{"type": condition, "status": "True", "reason": "JobsEnded"}]}
        self._cluster.touch(ObjectKind.JOB_SET, name)
        self._end_jobs(name)

    def _end_jobs(self, name: str) -> None:
        for job_name, job in self._cluster.objects(ObjectKind.JOB).items():
            if job["metadata"]["labels"].get(JOB_SET) == name and _condition(job) is None:
                self._cluster.remove(ObjectKind.JOB, job_name)


def gpus_of(body: Body) -> int:
    """GPUs of all pods of a JobSet."""
    parts = (part["template"]["spec"] for part in body["spec"]["replicatedJobs"])
    return sum(gpus_of_pod(spec["template"]) * spec["parallelism"] for spec in parts)


def _is_over(body: Body) -> bool:
    return bool((body.get("status") or {}).get("conditions"))


def _condition(job: Body | None) -> str | None:
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return conditions[0]["type"] if conditions else None
