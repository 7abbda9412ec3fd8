"""What every object of a run is called and has in common, as plain dicts. Pure: equal arguments, equal bodies.

Names are deterministic, so that doing a thing twice does it once. Every object carries the run's labels and is owned
by the controller's Job, so that deleting that Job frees everything. Two hashes go with each body: `scope/spec-hash`
says what it computes, `scope/body-hash` how. Pods are written for Pod Security "restricted", with fields of Kubernetes
1.20 only. Here too: the objects that the controller keeps for itself, its status, its Lease and its Events.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from scope_selfplay.config.cluster import ClusterConfig, PodConfig, amount, patched, secret_key
from scope_selfplay.config.run import RunConfig
from scope_selfplay.store.folder import Stage

Body = dict[str, Any]

_USER = 10_001
"""User and group of every container, as in the images; never root."""
EVERY_RUN = "app.kubernetes.io/name=scope-selfplay"
"""Selects what belongs to any run of the namespace."""
PORT = 8000

VOLUME = "/data"
CLAIM = "scope-data"
RUNS = f"{VOLUME}/runs"
CACHE = "/tmp/cache"
KEY_VARIABLE = "VLLM_API_KEY"
WORKER_ACCOUNT = "scope-worker"
CONFIG_FOLDER = "/etc/scope/run"
PROMPTS_FOLDER = "/etc/scope/prompts"
_API_VERSIONS = {"Job": "batch/v1", "Deployment": "apps/v1", "Lease": "coordination.k8s.io/v1"}
_STAYS = {
    # A node that is little used must not be given back under a stage of hours, or a server that took long to start.
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
OF_CONTAINERS = {
    # The root is read-only and the user has no entry in /etc/passwd: caches need a place, torch needs a name.
    "HOME": "/tmp",
    "USER": "scope",
    "XDG_CACHE_HOME": CACHE,
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
}
_BURST = 4
"""How many times its CPU request a container with GPUs may take while its node has them."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    **OF_CONTAINERS,
}


class Label:
    """What labels and annotations of a run's objects are called."""

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
    SUCCESSOR = "scope/successor"
    NAME = "app.kubernetes.io/name"
    COMPONENT = "app.kubernetes.io/component"
    QUEUE = "kueue.x-k8s.io/queue-name"


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
        return {Label.ITERATION: f"{self.iteration:02d}", Label.STAGE: self.stage.job_name}


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


def stored(path: str) -> str:
    """A path on the volume as it is called in the store, such as `models/X`."""
    return path.removeprefix(f"{VOLUME}/")


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

    @property
    def reference(self) -> Body:
        # No blockOwnerDeletion: clusters that check it ask for one more right (update on jobs/finalizers).
        return {"apiVersion": "batch/v1", "kind": "Job", **vars(self), "controller": True}


class Place(NamedTuple):
    """Where the programs of a run find their files and each other: in pods, or elsewhere."""

    runs: str = RUNS
    config: str = f"{CONFIG_FOLDER}/run.yaml"
    host: str = "0.0.0.0"
    """What servers listen on."""
    ports: Mapping[str, int] | None = None
    """By server, where all of them are on one host; in a cluster each has a host of its own, by its name."""
    serves: bool = True
    """Whether the run starts servers here."""

    def address(self, server: str) -> tuple[str, int]:
        return (server, PORT) if self.ports is None else (self.host, self.ports[server])


IN_PODS = Place()
IN_PROCESS = Place(serves=False)
"""Policies, judge and retriever are in the process of a stage, or servers of somebody else."""


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
    place: Place = IN_PODS


class Mount(NamedTuple):
    """A volume of a pod and where its container has it; without a `source` a second place of a volume."""

    name: str
    source: Body | None
    path: str
    read_only: bool = True
    below: str = ""
    """Folder of the volume."""


@dataclass(frozen=True)
class Program:
    """What one container runs."""

    image: str
    command: Sequence[str]
    settings: PodConfig
    environment: Mapping[str, str | Body] = field(default_factory=dict)
    """Name -> its value, or where it comes from (`valueFrom`)."""
    extra: Body = field(default_factory=dict)
    """Further fields of the container, such as ports and probes; they replace its own."""
    before: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name -> command of containers that run before it."""
    pulls: Sequence[str] = ()
    """With `cluster.store`: what `python -m jobs pull` brings before."""
    keeps: Sequence[str] = ()
    """And what `python -m jobs keep` stores."""


def pod_template(
    cluster: ClusterConfig,
    program: Program,
    labels: Mapping[str, str],
    mounts: Sequence[Mount] = (),
    *,
    restart: str = "Never",
    grace: int = 30,
    writes: bool = True,
    stays: bool = True,
) -> Body:
    """The pods of a Job or a Deployment with one container: every pod is made here, patches of the config included.

    `writes` is whether it may write on the run's volume, `stays` whether autoscalers must leave its node alone.
    """
    program = _with_store(cluster, program)
    claim = {"persistentVolumeClaim": {"claimName": cluster.volume_claim}}
    every = [
        Mount("data", {"emptyDir": {}} if cluster.store else claim, VOLUME, not writes),
        Mount("tmp", {"emptyDir": {}}, "/tmp", read_only=False),
        *mounts,
    ]
    has_gpus = gpus_of(cluster, program.settings) > 0
    if has_gpus:
        # NCCL and the processes of one engine share memory there; a container's own /dev/shm has 64 MiB.
        every.append(Mount("shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm", read_only=False))
    spec: Body = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": grace,
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT in every pod, which vLLM reads as its own.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Else a volume with millions of files is walked through at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(cluster, program, every)],
        "volumes": [{"name": mount.name, **mount.source} for mount in every if mount.source is not None],
    }
    metadata: Body = {"labels": dict(labels)} | ({"annotations": dict(_STAYS)} if stays else {})
    pod: Body = {"metadata": metadata, "spec": spec}
    for patch in (cluster.pod, cluster.gpu_pod if has_gpus else cluster.cpu_pod, program.settings.pod):
        pod = patched(pod, patch)
    pod["spec"] = _with_init_containers(cluster, program, pod["spec"])
    if has_gpus:
        # Most clusters keep nodes with GPUs for pods that ask for them; a slice's node has the taint of whole ones.
        found, resource = pod["spec"].get("tolerations") or [], cluster.gpu_resource
        key = "nvidia.com/gpu" if resource.startswith("nvidia.com/") else resource
        if not any(each.get("key") in (None, key) for each in found):
            pod["spec"]["tolerations"] = [*found, {"key": key, "operator": "Exists", "effect": "NoSchedule"}]
        if cluster.queue:
            pod["metadata"]["labels"][Label.QUEUE] = cluster.queue
    return pod


def _with_store(cluster: ClusterConfig, program: Program) -> Program:
    """The program where each pod has a disk of its own: what it needs comes before it, what it makes is stored."""
    jobs, store = ("python", "-m", "jobs"), ("--store", cluster.store)
    if cluster.store and program.pulls:
        pull = (*jobs, "pull", *store, *program.pulls)
        program = replace(program, before={"pull": pull, **program.before})
    if cluster.store and program.keeps:
        command = (*jobs, "keep", *store, *program.keeps, "--", *program.command)
        environment = {**way_out(cluster), **program.environment}
        extra = from_secrets(cluster.store_secret, program.extra)
        program = replace(program, command=command, environment=environment, extra=extra)
    return program


def from_secrets(secret: str | None, extra: Body) -> Body:
    """Fields of a container which has the keys of a Secret, where one is named, as variables of its environment."""
    source = {"secretRef": {"name": secret}}
    return extra | {"envFrom": [*extra.get("envFrom", ()), source]} if secret else extra


def _with_init_containers(cluster: ClusterConfig, program: Program, spec: Body) -> Body:
    (main,) = [each for each in spec["containers"] if each["name"] == "main"]
    before = [_init_container(cluster, program, main, name) for name in program.before]
    return spec | ({"initContainers": [*spec.get("initContainers", ()), *before]} if before else {})


def _init_container(cluster: ClusterConfig, program: Program, main: Body, name: str) -> Body:
    """A container that runs before the main one and has what that has, patches included, but no GPUs and no tokens.

    A pod asks for the most that either does: no more than its own is held for as long as it lives.
    """
    kept = ("env", "securityContext", "terminationMessagePolicy")
    # The store's key is for what copies.
    way = [{"name": each, "value": value} for each, value in way_out(cluster).items()]
    copies = from_secrets(cluster.store_secret, {"env": way}) if name == "pull" else {}
    own = {
        "name": name,
        "image": cluster.images.worker,
        "command": list(program.before[name]),
        **{key: main[key] for key in kept if key in main},
        "resources": {
            kind: {key: each for key, each in amounts.items() if key != cluster.gpu_resource}
            for kind, amounts in main["resources"].items()
        },
        "volumeMounts": [
            {key: each for key, each in mount.items() if (mount["name"], key) != ("data", "readOnly")}
            for mount in main["volumeMounts"]
            if mount["name"] != "token"
        ],
    }
    return patched(own, copies)


def _container(cluster: ClusterConfig, program: Program, mounts: Sequence[Mount]) -> Body:
    environment = {**_ENVIRONMENT, **program.environment}
    # It asks for what it may have, and not more: devices need equal requests and limits.
    amounts = program.settings.amounts(tiny=cluster.tiny)
    limits = dict(amounts)
    if gpus := gpus_of(cluster, program.settings):
        amounts[cluster.gpu_resource] = limits[cluster.gpu_resource] = str(gpus)
        # An engine's host side works in bursts; where it is throttled its GPUs wait.
        limits["cpu"] = f"{_BURST * amount(amounts['cpu']):g}"
    return {
        "name": "main",
        "image": program.image,
        "command": list(program.command),
        "env": [
            {"name": each, ("value" if isinstance(value, str) else "valueFrom"): value}
            for each, value in environment.items()
        ],
        "resources": {"requests": amounts, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": mount.name, "mountPath": mount.path}
            | ({"readOnly": True} if mount.read_only else {})
            | ({"subPath": mount.below} if mount.below else {})
            for mount in mounts
        ],
        # The last lines of the log become the message that a person reads in the status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **program.extra,
    }


def run_mounts(config: RunConfig, packs: Sequence[str]) -> list[Mount]:
    """The run's config and its prompt packs."""
    maps = {"run": (f"{config.name}-config", CONFIG_FOLDER)}
    maps |= {f"prompts-{pack}": (pack_map(config.name, pack), f"{PROMPTS_FOLDER}/{pack}") for pack in packs}
    return [Mount(name, {"configMap": {"name": source}}, path) for name, (source, path) in maps.items()]


def key_variable(cluster: ClusterConfig) -> dict[str, Body]:
    """The key of the servers, under the name that vLLM reads; stages send it under the same name."""
    return _from_secret(KEY_VARIABLE, cluster.key_secret)


def stage_variables(cluster: ClusterConfig) -> dict[str, str | Body]:
    """What asks the servers of a run, and others outside, has in its environment."""
    return {
        **key_variable(cluster),
        **_from_secret("JUDGE_API_KEY", cluster.judge_secret),
        **way_out(cluster),
    }


def way_out(cluster: ClusterConfig) -> dict[str, str | Body]:
    """The proxy's variables. What is inside is called over HTTP, by names without a dot."""
    return {"HTTPS_PROXY": cluster.proxy, "NO_PROXY": ".svc,.cluster.local"} if cluster.proxy else {}


def _from_secret(variable: str, named: str | None) -> dict[str, Body]:
    name, key = secret_key(named or "")
    return {variable: {"secretKeyRef": {"name": name, "key": key}}} if named else {}


def gpus_of(cluster: ClusterConfig, settings: PodConfig) -> int:
    return 0 if cluster.tiny else settings.gpus


def status_map(context: ManifestContext, data: Mapping[str, str], resource_version: str | None) -> Body:
    """`<run>-status`: what people read, and the record of attempts. With a version: only onto that version."""
    labels = labels_of(context.config, Component.CONTROLLER)
    name = status_name(context.config.name)
    body = named_object("ConfigMap", name, labels, owner=context.owner, version=resource_version)
    return {**body, "data": dict(data)}


def lease(
    config: RunConfig, spec: Mapping[str, Any], resource_version: str | None, successor: str = ""
) -> Body:
    """`<run>-controller`: one controller at a time, whichever Job it belongs to; `successor` is to lead next.

    Nobody owns it: it must outlive the controller that made it, because its token may never start again.
    """
    labels = labels_of(config, Component.CONTROLLER)
    body = named_object("Lease", lease_name(config.name), labels, version=resource_version)
    if successor:
        body["metadata"]["annotations"] = {Label.SUCCESSOR: successor}
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
        **named_object("Event", name, labels_of(context.config, Component.CONTROLLER)),
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
    return {Label.NAME: "scope-selfplay", Label.COMPONENT: component.value, Label.RUN: config.name}


def stamped(
    context: ManifestContext, kind: str, name: str, labels: dict[str, str], spec: Body, *, what: str = ""
) -> Body:
    own = labels if kind == "Service" else labels | queue_labels(context.config.cluster, spec["template"])
    body = named_object(kind, name, own, owner=context.owner)
    annotations = {
        Label.FENCE: str(context.fence),
        Label.BODY_HASH: short_hash(json.dumps(spec, sort_keys=True)),
    }
    if what:
        annotations[Label.SPEC_HASH] = what
    body["metadata"]["annotations"] = annotations
    return {**body, "spec": spec}


def queue_labels(cluster: ClusterConfig, template: Body) -> dict[str, str]:
    """Of a Job or Deployment: the cluster's, and the queue of its pods; queues look there."""
    found = template["metadata"]["labels"]
    return cluster.labels | ({Label.QUEUE: found[Label.QUEUE]} if Label.QUEUE in found else {})


def named_object(
    kind: str, name: str, labels: dict[str, str], *, owner: Owner | None = None, version: str | None = None
) -> Body:
    metadata: Body = {"name": name, "labels": labels}
    if owner is not None:
        metadata["ownerReferences"] = [owner.reference]
    if version is not None:
        metadata["resourceVersion"] = version
    return {"apiVersion": _API_VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata}


def name_by_content(name: str, content: Any) -> str:
    """A Job cannot be changed: one of other content has another name, and apply makes it."""
    return f"{name}-{short_hash(json.dumps(content, sort_keys=True))[:8]}"


def short_hash(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]
