"""What the lists of the API say, as values: Jobs with their pods, servers with theirs. Pure; reads plain dicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from scope_selfplay.cluster.pods import Component, Label, RunStage, StageShard
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.store.folder import Stage

Body = Mapping[str, Any]

# Reasons of a pod or of its DisruptionTarget condition that are nobody's fault in the run.
_DISRUPTIONS = {
    "Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "Preempted",
    "NodeAffinity", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfnvidia.com/gpu",
}  # fmt: skip
_GATED = "SchedulingGated"
_STUCK = {
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "InvalidImageName",
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "CrashLoopBackOff",
}  # fmt: skip


class JobState(StrEnum):
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class ObservedPod:
    name: str
    step: RunStage | None
    job: str | None
    server: str | None
    phase: str
    ending: bool
    exit_code: int | None
    """Of the last container that ended, also of one that was restarted since."""
    oom_killed: bool
    disrupted: bool
    message: str
    """The last lines of the container that ended, or the kubelet's reason."""
    unscheduled: str | None
    """What the scheduler says, while the pod has no node."""
    queue: str
    """The queue that has not admitted it yet; empty where none holds it back."""
    stuck: str | None
    """Why the container does not start."""
    initializes: bool
    """An init container runs."""
    node: str
    """Empty until it has one."""

    @property
    def holds_node(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    @property
    def starts(self) -> bool:
        """It has a node and waits there for its volumes, Secrets or image."""
        waits = self.stuck is None and not self.initializes
        return self.phase == "Pending" and self.node != "" and waits


@dataclass(frozen=True)
class ObservedObject:
    """What a Job, a Deployment and a Service have in common."""

    kind: ObjectKind
    name: str
    uid: str
    owner: str | None
    """The uid of the Job that controls it."""
    step: RunStage | None
    body_hash: str
    pods: tuple[ObservedPod, ...]


@dataclass(frozen=True)
class ObservedJob(ObservedObject):
    step: RunStage
    attempt: int
    shard: StageShard | None
    spec_hash: str
    state: JobState
    deadline_exceeded: bool
    suspended: bool
    """A queue, such as Kueue's, has not admitted it yet."""
    queue: str
    """Its queue; empty where none is named."""

    @property
    def is_placed(self) -> bool:
        """All its pods have a node."""
        return bool(self.pods) and all(pod.node for pod in self.pods)


@dataclass(frozen=True)
class ObservedServer(ObservedObject):
    component: str
    ready: bool
    problem: str | None
    """Why the cluster makes no pod for it: a quota, say."""


@dataclass(frozen=True, order=True)
class OtherRun:
    """Another run of the namespace; the older one comes first."""

    since: str
    """When the oldest of its pods was made."""
    name: str
    waits: bool
    """One of its pods has no node."""
    placed: int
    """Pods that have one."""


@dataclass(frozen=True)
class ObservedCluster:
    jobs: tuple[ObservedJob, ...] = ()
    servers: tuple[ObservedServer, ...] = ()
    services: tuple[ObservedObject, ...] = ()
    pods: tuple[ObservedPod, ...] = ()
    older: tuple[ObservedObject, ...] = ()
    """Controllers' Jobs whose place the one that asks takes."""
    newer: tuple[ObservedObject, ...] = ()
    """Those that are to take its place."""
    since: str = ""
    """When the oldest of `pods` was made."""
    others: tuple[OtherRun, ...] = ()
    status: Mapping[str, str] = field(default_factory=dict)
    """Data of the status ConfigMap as it was written last."""


def observe(
    run: str,
    jobs: Sequence[Body],
    pods: Sequence[Body],
    deployments: Sequence[Body],
    services: Sequence[Body],
    status: Mapping[str, str],
    controller: str = "",
) -> ObservedCluster:
    """Objects of one run, and the pods of every run, as the Job `controller` sees them."""
    of_run: dict[str, list[Body]] = {run: []}
    for body in pods:
        of_run.setdefault(_label(body, Label.RUN), []).append(body)
    found = tuple(_pod(pod) for pod in of_run[run])
    others = (_other_run(name, bodies) for name, bodies in of_run.items() if name not in ("", run))
    stage_jobs = [job for job in jobs if step_of(_labels(job)) and _label(job, Label.ATTEMPT).isdigit()]
    older, newer = other_controllers(controller, jobs)
    return ObservedCluster(
        jobs=tuple(_job(job, found) for job in stage_jobs),
        servers=tuple(_server(body, found) for body in deployments if _label(body, Label.SERVER)),
        services=tuple(ObservedObject(**_identity(body, ObjectKind.SERVICE)) for body in services),
        pods=found,
        older=older,
        newer=newer,
        since=_oldest(of_run[run]),
        others=tuple(sorted(others)),
        status=dict(status),
    )


def other_controllers(
    name: str, jobs: Sequence[Body]
) -> tuple[tuple[ObservedObject, ...], tuple[ObservedObject, ...]]:
    """Jobs that drive what the controller's Job `name` drives, one iteration or all: older ones, and newer ones."""
    driving = [job for job in jobs if _label(job, Label.COMPONENT) == Component.CONTROLLER]
    own = [job for job in driving if job["metadata"]["name"] == name]
    drives = [_label(job, Label.ITERATION) for job in own]
    alike = [job for job in driving if _label(job, Label.ITERATION) in drives]
    alike.sort(key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["uid"]))
    found = tuple(ObservedObject(**_identity(job, ObjectKind.JOB)) for job in alike)
    at = alike.index(own[0]) if own else 0
    return found[:at], found[at + 1 :]


def _other_run(name: str, bodies: Sequence[Body]) -> OtherRun:
    pods = [pod for pod in map(_pod, bodies) if pod.step or pod.server]
    waits = any(pod.unscheduled is not None and not pod.queue and not pod.ending for pod in pods)
    placed = sum(bool(pod.node) and pod.holds_node for pod in pods)
    return OtherRun(_oldest(bodies), name, waits, placed)


def _oldest(bodies: Sequence[Body]) -> str:
    return min((body["metadata"]["creationTimestamp"] for body in bodies), default="")


def step_of(labels: Mapping[str, str]) -> RunStage | None:
    stages = {stage.job_name: stage for stage in Stage}
    stage, iteration = stages.get(labels.get(Label.STAGE, "")), labels.get(Label.ITERATION, "")
    return RunStage(int(iteration), stage) if stage is not None and iteration.isdigit() else None


def owner_of(body: Body) -> str | None:
    """The uid of the Job that controls an object."""
    owners = body["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _identity(body: Body, kind: ObjectKind, pods: Sequence[ObservedPod] = ()) -> dict[str, Any]:
    """The fields of an ObservedObject."""
    name = body["metadata"]["name"]
    return {
        "kind": kind,
        "name": name,
        "uid": body["metadata"]["uid"],
        "owner": owner_of(body),
        "step": step_of(_labels(body)),
        "body_hash": annotation(body, Label.BODY_HASH),
        "pods": tuple(pod for pod in pods if name in (pod.job, pod.server)),
    }


def _job(body: Body, pods: Sequence[ObservedPod]) -> ObservedJob:
    labels, conditions = _labels(body), _conditions(body)
    failed = conditions.get("Failed")
    state = JobState.SUCCEEDED if "Complete" in conditions else JobState.ACTIVE
    number, of = labels.get(Label.SHARD, ""), labels.get(Label.SHARDS, "")
    return ObservedJob(
        **_identity(body, ObjectKind.JOB, pods),
        attempt=int(labels[Label.ATTEMPT]),
        shard=StageShard(int(number) if number.isdigit() else None, int(of)) if of.isdigit() else None,
        spec_hash=annotation(body, Label.SPEC_HASH),
        state=JobState.FAILED if failed else state,
        suspended=bool((body.get("spec") or {}).get("suspend")),
        queue=labels.get(Label.QUEUE, ""),
        deadline_exceeded=failed is not None and failed.get("reason") == "DeadlineExceeded",
    )


def _server(body: Body, pods: Sequence[ObservedPod]) -> ObservedServer:
    status = body.get("status") or {}
    failure = _conditions(body).get("ReplicaFailure")
    # Until the Deployment's controller has seen the newest spec, its counts are those of an older one.
    current = status.get("observedGeneration", 0) >= body["metadata"].get("generation", 1)
    return ObservedServer(
        **_identity(body, ObjectKind.DEPLOYMENT, pods),
        component=_label(body, Label.COMPONENT),
        ready=current and bool(status.get("readyReplicas")) and status.get("updatedReplicas") == 1,
        problem=failure.get("message", failure.get("reason", "")) if failure else None,
    )


def _pod(body: Body) -> ObservedPod:
    labels, status = _labels(body), body.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    # An init container counts as long as it runs, and where it ended badly.
    first = [
        each
        for each in status.get("initContainerStatuses") or []
        if ((each.get("state") or {}).get("terminated") or {}).get("exitCode") != 0
    ]
    containers = [*first, *(status.get("containerStatuses") or [])]
    states = [container.get(when) or {} for container in containers for when in ("state", "lastState")]
    ended: Body = next((state["terminated"] for state in states if "terminated" in state), {})
    scheduled, target = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    phase = status.get("phase", "Pending")
    is_unscheduled = phase == "Pending" and scheduled.get("status") == "False"
    said = ended.get("message") or status.get("message") or target.get("message") or ""
    # What a person needs of the log's tail: our programs end with one line that says everything.
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return ObservedPod(
        name=body["metadata"]["name"],
        step=step_of(labels),
        job=labels.get("job-name"),
        server=labels.get(Label.SERVER),
        phase=phase,
        ending="deletionTimestamp" in body["metadata"],
        exit_code=ended.get("exitCode"),
        oom_killed=ended.get("reason") == "OOMKilled",
        disrupted=status.get("reason") in _DISRUPTIONS or target.get("status") == "True",
        message=lines[-1][:400] if lines else "",
        unscheduled=scheduled.get("message", "no node yet") if is_unscheduled else None,
        queue=labels.get(Label.QUEUE, "") if is_unscheduled and scheduled.get("reason") == _GATED else "",
        stuck=_stuck(containers),
        initializes=any("running" in (each.get("state") or {}) for each in first),
        node=(body.get("spec") or {}).get("nodeName") or "",
    )


def _stuck(containers: Sequence[Body]) -> str | None:
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            return f"{waiting['reason']}: {waiting.get('message', container.get('image', ''))}"
    return None


def _conditions(body: Body) -> dict[str, Body]:
    """The conditions that are true, by type."""
    conditions = (body.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions if condition["status"] == "True"}


def _labels(body: Body) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _label(body: Body, name: str) -> str:
    return _labels(body).get(name, "")


def annotation(body: Body, name: str) -> str:
    found: str = (body["metadata"].get("annotations") or {}).get(name, "")
    return found
