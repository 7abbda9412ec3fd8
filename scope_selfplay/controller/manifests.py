"""What every object of a run is called and has in common, as plain dicts. Pure: equal arguments, equal bodies.

Names are deterministic, so that doing a thing twice does it once. Every object carries the run's labels and is owned
by the controller's Job, so that deleting that Job frees everything. Two hashes go with each body: `scope/spec-hash`
says what it computes, `scope/body-hash` how. Pods are written for Pod Security "restricted", with fields of Kubernetes
1.20 only. Here too: the objects that the controller keeps for itself, its status, its Lease and its Events.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.config.cluster import ClusterConfig
from scope_selfplay.config.pods import PodConfig
from scope_selfplay.controller.pod_patches import patched
from scope_selfplay.store import Stage

Body = dict[str, Any]

RUN = "scope/run"
ITERATION = "scope/iteration"
STAGE = "scope/stage"
ATTEMPT = "scope/attempt"
SHARD = "scope/shard"
SHARDS = "scope/shards"
SERVER = "scope/server"
SPEC_HASH = "scope/spec-hash"
BODY_HASH = "scope/body-hash"
FENCE = "scope/fence"
COMPONENT = "app.kubernetes.io/component"
QUEUE = "kueue.x-k8s.io/queue-name"
EVERY_RUN = "app.kubernetes.io/name=scope-selfplay"
"""Selects what belongs to any run of the namespace."""
PORT = 8000

VOLUME = "/data"
RUNS = f"{VOLUME}/runs"
CACHE = "/tmp/cache"
KEY_VARIABLE = "VLLM_API_KEY"
WORKER_ACCOUNT = "scope-worker"
CONFIG_FOLDER = "/etc/scope/run"
PROMPTS_FOLDER = "/etc/scope/prompts"
_API_VERSIONS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "Deployment": "apps/v1",
    "Lease": "coordination.k8s.io/v1",
}
_STAYS = {
    # A node that is little used must not be given back under a stage of hours, or a server that took long to start.
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # The root is read-only and the user has no entry in /etc/passwd: caches need a place, torch needs a name.
    "HOME": "/tmp",
    "USER": "scope",
    "XDG_CACHE_HOME": CACHE,
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
}


class Component(StrEnum):
    """What a pod is for: NetworkPolicies select it by the label `app.kubernetes.io/component`."""

    CONTROLLER = "controller"
    TRAINER = "trainer"
    WORKER = "worker"
    JUDGE = "judge"
    SOLVER = "solver"
    CHALLENGER = "challenger"
    RETRIEVER = "retriever"


class RunStage(NamedTuple):
    """One stage of one iteration."""

    iteration: int
    stage: Stage

    @property
    def name(self) -> str:
        return f"i{self.iteration:02d}-{self.stage.job_name}"

    @property
    def labels(self) -> dict[str, str]:
        return {ITERATION: f"{self.iteration:02d}", STAGE: self.stage.job_name}


class StageShard(NamedTuple):
    """One of several Jobs that share the documents of a stage; counted from 0, None for the one that collects."""

    number: int | None
    of: int


def job_name(run: str, step: RunStage, attempt: int, shard: StageShard | None = None) -> str:
    """At most 61 characters for the longest run id, so that pod names still end in the Job's whole name."""
    return f"{run}-{shard_name(step, shard)}-a{attempt}"


def shard_name(step: RunStage, shard: StageShard | None) -> str:
    """A shard of a stage, or the stage itself: what attempts are counted of."""
    return step.name if shard is None or shard.number is None else f"{step.name}-s{shard.number:02d}"


def server_name(run: str, component: Component, step: RunStage | None, replica: int = 0) -> str:
    """`step` is None for servers of the whole run; replica 0 has the name of an only one."""
    name = f"{run}-{component}" if step is None else f"{run}-i{step.iteration:02d}-{component}"
    return f"{name}-{replica}" if replica else name


def status_name(run: str) -> str:
    return f"{run}-status"


def pack_map(run: str, pack: str) -> str:
    """The ConfigMap of one prompt pack."""
    return f"{run}-prompts-{pack}"


def lease_name(run: str) -> str:
    return f"{run}-controller"


@dataclass(frozen=True)
class Owner:
    """The controller's Job."""

    name: str
    uid: str


@dataclass(frozen=True)
class ManifestContext:
    """From which inputs manifests are written, and which Job owns them."""

    config: RunConfig
    prompt_hash: str
    packs: tuple[str, ...]
    """Prompt packs, each in a ConfigMap of the run's own (`pack_map`): its domain and every one that it extends."""
    owner: Owner
    fence: int
    """The Lease's token; a later leader has a higher one."""


@dataclass(frozen=True)
class Program:
    """What one container runs."""

    image: str
    command: Sequence[str]
    settings: PodConfig
    environment: Mapping[str, str]
    extra: Body
    """Further fields of the container: ports, probes."""


def pod_template(context: ManifestContext, program: Program, labels: dict[str, str]) -> Body:
    """The template of a Job or a Deployment with one container."""
    cluster = context.config.cluster
    volumes, mounts = _volumes(context, program.settings)
    spec: Body = {
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT in every pod, which vLLM reads as its own.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": cluster.user,
            "runAsGroup": cluster.user,
            "fsGroup": cluster.user,
            # Else a volume with millions of files is walked through at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(cluster, program, mounts)],
        "volumes": volumes,
        **_scheduling(cluster, program.settings),
    }
    template: Body = {"metadata": {"labels": labels, "annotations": dict(_STAYS)}, "spec": spec}
    return patched(patched(template, cluster.pod), program.settings.pod)


def _container(cluster: ClusterConfig, program: Program, mounts: Sequence[Body]) -> Body:
    environment: list[Body] = [
        {"name": name, "value": value} for name, value in {**_ENVIRONMENT, **program.environment}.items()
    ]
    if cluster.key_secret is not None:
        # The key of the servers under the name that vLLM reads; stages send it under the same name.
        source = {"secretKeyRef": {"name": cluster.key_secret, "key": "token"}}
        environment.append({"name": KEY_VARIABLE, "valueFrom": source})
    return {
        "name": "main",
        "image": program.image,
        "command": list(program.command),
        "env": environment,
        "resources": resources_of(cluster, program.settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
        # The last lines of the log become the message that a person reads in the status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **program.extra,
    }


def gpus_of(cluster: ClusterConfig, settings: PodConfig) -> int:
    return 0 if cluster.tiny else settings.gpus


def resources_of(cluster: ClusterConfig, settings: PodConfig) -> Body:
    """What a container asks for, and not more than that: devices need equal requests and limits."""
    amounts = {"cpu": settings.cpu, "memory": settings.memory}
    if gpus := gpus_of(cluster, settings):
        amounts[cluster.gpu_resource] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def status_map(context: ManifestContext, data: Mapping[str, str], resource_version: str | None) -> Body:
    """`<run>-status`: what people read, and the record of attempts. With a version: only onto that version."""
    labels = labels_of(context.config, Component.CONTROLLER)
    name = status_name(context.config.name)
    body = _object("ConfigMap", name, labels, owner=context.owner, version=resource_version)
    return {**body, "data": dict(data)}


def lease(config: RunConfig, spec: Mapping[str, Any], resource_version: str | None) -> Body:
    """`<run>-controller`: one controller at a time, whichever Job it belongs to.

    Nobody owns it: it must outlive the controller that made it, because its token may never start again.
    """
    labels = labels_of(config, Component.CONTROLLER)
    body = _object("Lease", lease_name(config.name), labels, version=resource_version)
    return {**body, "spec": dict(spec)}


def event(
    context: ManifestContext, namespace: str, *, reason: str, message: str, warning: bool, now: str
) -> Body:
    """A core/v1 Event about the controller's Job; `now` is RFC 3339 in UTC.

    The name follows from its text, so that the same text sent twice makes one Event.
    """
    owner = context.owner
    name = f"{owner.name}.{short_hash(reason, message, owner.uid)}"
    about = {"apiVersion": "batch/v1", "kind": "Job", "namespace": namespace, **vars(owner)}
    return {
        **_object("Event", name, labels_of(context.config, Component.CONTROLLER)),
        "involvedObject": about,
        "reason": reason,
        "message": message[:1000],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "scope-controller"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def labels_of(config: RunConfig, component: Component) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "scope-selfplay",
        COMPONENT: component.value,
        RUN: config.name,
    }


def stamped(
    context: ManifestContext, kind: str, name: str, labels: dict[str, str], spec: Body, *, what: str = ""
) -> Body:
    own = labels if kind == "Service" else labels | context.config.cluster.labels
    body = _object(kind, name, own, owner=context.owner)
    annotations = {FENCE: str(context.fence), BODY_HASH: short_hash(json.dumps(spec, sort_keys=True))}
    if what:
        annotations[SPEC_HASH] = what
    body["metadata"]["annotations"] = annotations
    return {**body, "spec": spec}


def _object(
    kind: str, name: str, labels: dict[str, str], *, owner: Owner | None = None, version: str | None = None
) -> Body:
    metadata: Body = {"name": name, "labels": labels}
    if owner is not None:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": owner.uid}
        # No blockOwnerDeletion: clusters that check it ask for one more right (update on jobs/finalizers).
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    if version is not None:
        metadata["resourceVersion"] = version
    return {"apiVersion": _API_VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata}


def short_hash(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]


def _volumes(context: ManifestContext, settings: PodConfig) -> tuple[list[Body], list[Body]]:
    """The volumes of a pod, and where its container mounts them."""
    config = context.config
    claim = {"claimName": config.cluster.volume_claim}
    # Name, source, path, and whether the container may only read it.
    volumes: list[tuple[str, Body, str, bool]] = [
        ("data", {"persistentVolumeClaim": claim}, VOLUME, False),
        ("tmp", {"emptyDir": {}}, "/tmp", False),
        ("run", {"configMap": {"name": f"{config.name}-config"}}, CONFIG_FOLDER, True),
    ]
    for pack in context.packs:
        source = {"configMap": {"name": pack_map(config.name, pack)}}
        volumes.append((f"prompts-{pack}", source, f"{PROMPTS_FOLDER}/{pack}", True))
    volumes += [(volume.name, volume.source, volume.path, True) for volume in config.cluster.volumes]
    if gpus_of(config.cluster, settings):
        # NCCL and the processes of one engine share memory there; a container's own /dev/shm has 64 MiB.
        volumes.append(("shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm", False))
    mounts = [
        {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})
        for name, _, path, read_only in volumes
    ]
    return [{"name": name, **source} for name, source, _, _ in volumes], mounts


def tolerations_of(cluster: ClusterConfig, *, has_gpus: bool) -> list[Body]:
    """The run's own, and that of GPU nodes, which most clusters keep for pods that ask for GPUs."""
    own = [toleration.model_dump() for toleration in cluster.tolerations]
    found = [{name: value for name, value in fields.items() if value} for fields in own]
    if has_gpus and not any(each.get("key") in (None, cluster.gpu_resource) for each in found):
        found.append({"key": cluster.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _scheduling(cluster: ClusterConfig, settings: PodConfig) -> Body:
    spec: Body = {}
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if tolerations := tolerations_of(cluster, has_gpus=gpus_of(cluster, settings) > 0):
        spec["tolerations"] = tolerations
    if cluster.priority_class:
        spec["priorityClassName"] = cluster.priority_class
    if cluster.pull_secret:
        spec["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    return spec
