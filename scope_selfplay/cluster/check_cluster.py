"""Whether a run fits its cluster: the server's version, the claim and what fills it, Secrets, quotas, and nodes.

What this user may not look at is a note, not a fault: rights in one namespace are enough to run. What other pods hold
is not free; who may list nodes but not the pods of other namespaces is told so, and what nodes offer is taken for free.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scope_selfplay.base.errors import Finding, State
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.cluster.objects import (
    COUNTED,
    Amounts,
    Pods,
    count_pods,
    matches,
    name_of,
    pods_of,
    readable,
    stage_usage,
)
from scope_selfplay.cluster.pods import Body, Label
from scope_selfplay.cluster.prepare import secrets_of
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.run import RunConfig

CLAIM_KIND = "PersistentVolumeClaim"
OF_ONE_NODE = {
    *("ebs.csi.aws.com", "kubernetes.io/aws-ebs", "ebs.csi.eks.amazonaws.com", "pd.csi.storage.gke.io"),
    *("kubernetes.io/gce-pd", "disk.csi.azure.com", "rancher.io/local-path", "kubernetes.io/no-provisioner"),
}
"""Provisioners of block storage and of nodes' own disks: no ReadWriteMany file systems."""


def claim_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[Finding]:
    """A claim that the run does not bring itself must exist. Raises ConfigError where claims may not be seen."""
    name, mode = f"{CLAIM_KIND}/{config.cluster.volume_claim}", config.cluster.access_mode
    if name in map(name_of, objects) or config.cluster.store:
        return
    claim = cluster.get("persistentvolumeclaims", config.cluster.volume_claim)
    modes = claim["spec"].get("accessModes") or [] if claim else []
    if claim is None:
        yield Finding(name, "does not exist; create it, or leave cluster.volume_claim out")
    elif not {mode, "ReadWriteMany"} & set(modes):
        yield Finding(
            name,
            f"is {', '.join(modes)}, and the run wants {mode}; make another claim, or set its accessModes in "
            "cluster.claim and a nodeSelector in cluster.pod",
        )


def storage_problems(objects: Sequence[Body], cluster: Kubectl) -> Iterator[Finding]:
    """Claims that nothing would fill. Raises ConfigError where storage classes may not be seen."""
    classes = {body["metadata"]["name"]: body for body in cluster.objects("storageclasses")}
    default = next((name for name, body in classes.items() if is_default_class(body)), "")
    known = ", ".join(classes) or "none"
    for claim in (body for body in objects if body.get("kind") == CLAIM_KIND):
        bound = cluster.get("persistentvolumeclaims", claim["metadata"]["name"]) or {}
        if (bound.get("status") or {}).get("phase") == "Bound":
            continue
        # An empty name asks for a volume that somebody made, also where there is a default class.
        wanted = claim["spec"].get("storageClassName")
        name = default if wanted is None else wanted
        maker = classes.get(name, {}).get("provisioner")
        if maker in OF_ONE_NODE and "ReadWriteMany" in claim["spec"]["accessModes"]:
            several = [name for name, body in classes.items() if body.get("provisioner") not in OF_ONE_NODE]
            yield Finding(
                name_of(claim),
                f"is ReadWriteMany, and volumes of the StorageClass {name} ({maker}) are one node's; "
                f"name one for several nodes ({', '.join(several) or 'there is none'}) as storageClassName in "
                "cluster.claim, set accessModes: [ReadWriteOnce] there and a nodeSelector in cluster.pod, or name an "
                "object store: cluster.store",
            )
            continue
        if name in classes or wanted == "":
            continue
        message = f"wants the StorageClass {wanted}; there are {known}"
        if not wanted:
            message = (
                f"names no StorageClass and the cluster has no default one; there are {known}; "
                "name one (storageClassName in cluster.claim), or make a PersistentVolume for it"
            )
        # A volume that is bound to the claim, or will be, needs no class.
        if not any(_fits(volume, claim, cluster.namespace) for volume in cluster.seen("persistentvolumes")):
            yield Finding(name_of(claim), message)


def is_kept_for(volume: Body, claim: str, namespace: str) -> bool:
    kept = volume["spec"].get("claimRef") or {}
    return (kept.get("namespace"), kept.get("name")) == (namespace, claim)


def _fits(volume: Body, claim: Body, namespace: str) -> bool:
    spec, wanted, metadata = volume["spec"], claim["spec"], claim["metadata"]
    # A volume that is kept for a claim is bound to it whatever its class.
    classes = {each.get("storageClassName") or "" for each in (spec, wanted)}
    is_free = len(classes) == 1 and (volume.get("status") or {}).get("phase") == "Available"
    is_ours = is_kept_for(volume, metadata["name"], metadata.get("namespace", namespace))
    enough = amount(spec["capacity"]["storage"]) >= amount(wanted["resources"]["requests"]["storage"])
    has_modes = {*wanted["accessModes"]} <= {*(spec.get("accessModes") or [])}
    return (is_ours if "claimRef" in spec else is_free) and enough and has_modes


def is_default_class(storage_class: Body) -> bool:
    """Whether claims that name no StorageClass get this one."""
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


def probe_findings(config: RunConfig, cluster: Kubectl) -> Iterator[Finding]:
    """What the volume could do when it was probed. Raises ConfigError where pods may not be seen."""
    if not config.cluster.store:
        yield probe_finding(cluster)


def probe_finding(cluster: Kubectl) -> Finding:
    """What the newest pod of a Job `probe-volume` ended with. Raises as `Kubectl.objects`."""
    ended = [
        (state["finishedAt"], state.get("message", "").strip(), state.get("exitCode", 0) != 0)
        for pod in cluster.objects("pods", f"{Label.COMPONENT}=probe-volume")
        for container in (pod.get("status") or {}).get("containerStatuses") or []
        if (state := (container.get("state") or {}).get("terminated")) and state.get("finishedAt")
    ]
    if not ended:
        return Finding("the volume", "was not probed yet: kubectl apply -k RUN/prepare", State.OK)
    _, line, failed = max(ended)
    line = line or "was probed in vain; see the log of the Job probe-volume"
    return Finding("the volume", line, State.STOP if failed else State.OK)


def peak_gpus(config: RunConfig) -> dict[str, int]:
    """GPUs of each stage, its servers included."""
    gpus = f"requests.{config.cluster.gpu_resource}"
    return {stage: int(usage[gpus]) for stage, usage in stage_usage(config).items()}


def quota_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[Finding]:
    """Quotas that some stage does not fit into, given what others use. Raises ConfigError where none may be seen."""
    quotas = [(quota, quota.get("status") or {}) for quota in cluster.objects("resourcequotas")]
    if quotas:
        # What this run takes already must not count as the use of others.
        own, ours = f"scope/run={config.name}", Amounts(float)
        for pod in cluster.objects("pods", own):
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                count_pods(ours, pod["spec"], 1)
        for plural, *resources in COUNTED.values():
            ours.update(dict.fromkeys(resources, len(cluster.objects(plural, own))))
        for quota, status in quotas:
            used = {name: amount(value) - ours[name] for name, value in (status.get("used") or {}).items()}
            yield from _over_quota(config, objects, quota, status.get("hard") or {}, used)


def own_quota_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[Finding]:
    """Quotas that the run brings itself, in a namespace without other users. Pure."""
    for quota in (body for body in objects if body.get("kind") == "ResourceQuota"):
        yield from _over_quota(config, objects, quota, quota["spec"].get("hard") or {}, {})


def _over_quota(
    config: RunConfig,
    objects: Sequence[Body],
    quota: Body,
    hard: Mapping[str, Any],
    used: Mapping[str, float],
) -> Iterator[Finding]:
    spec = quota.get("spec") or {}
    # One for some pods only, such as those of a priority: the cluster decides which ones.
    if spec.get("scopes") or spec.get("scopeSelector"):
        return
    controller = [body for body in objects if name_of(body).startswith(f"Job/{config.name}-controller-")]
    needs = stage_usage(config, controller)
    for resource, limit in hard.items():
        others = max(0.0, used.get(resource, 0.0))
        stage = max(needs, key=lambda name: needs[name][resource])
        wanted = needs[stage][resource]
        if wanted > amount(limit) - others:
            yield Finding(
                name_of(quota),
                f"allows {limit} {resource}, others use {readable(others)}, the stage {stage} takes {readable(wanted)}",
            )


def one_node_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[Finding]:
    """A volume that one node mounts keeps a pod on another node waiting for ever (Multi-Attach). Pure."""
    single, wanted = claims_of_one_node(config, objects), config.cluster.node_selector
    for pods in pods_of(objects):
        mounted = [volume.get("persistentVolumeClaim") or {} for volume in pods.spec.get("volumes") or []]
        selector = dict(pods.spec.get("nodeSelector") or {})
        for claim in sorted(single & {each.get("claimName") for each in mounted}):
            if selector and selector == wanted:
                continue
            why = (
                f"on a node with {pairs(selector)}, and the run's other pods go to one with "
                f"{pairs(wanted) or 'any labels'}; make them the same"
                if selector
                else "and nothing keeps it on the volume's node; set a nodeSelector in cluster.pod, or add the "
                "component single-node"
            )
            yield Finding(pods.owner, f"mounts {claim}, which is ReadWriteOnce, {why}")


def claims_of_one_node(config: RunConfig, objects: Sequence[Body]) -> set[str]:
    """Claims that are ReadWriteOnce by the config, or by what a person wrote into the claim itself."""
    cluster = config.cluster
    configured = {cluster.volume_claim} if cluster.access_mode == "ReadWriteOnce" else set()
    return configured | {
        body["metadata"]["name"]
        for body in objects
        if body.get("kind") == CLAIM_KIND and body["spec"]["accessModes"] == ["ReadWriteOnce"]
    }


def pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


class _Room(NamedTuple):
    """What one node offers, and what of it nobody holds."""

    offered: Mapping[str, float]
    free: Mapping[str, float]
    taints: Sequence[Body]
    labels: Mapping[str, str]


def node_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[Finding]:
    """Nodes that the run may go to, and their room. Raises ConfigError where nodes may not be seen."""
    selector = config.cluster.node_selector
    everything = pods_of(objects)
    if not any(pods.spec.get("nodeSelector") for pods in everything) and not any(peak_gpus(config).values()):
        return
    nodes = cluster.objects("nodes")
    labels = {"matchLabels": selector}
    found = [node for node in nodes if matches(labels, node["metadata"].get("labels") or {})]
    if not found:
        yield _from_zero(pairs(selector) or "come up")
        return
    is_one = bool(claims_of_one_node(config, objects))
    if selector and is_one and len(found) > 1:
        message = (
            f"{len(found)} have {pairs(selector)}, and the volume is ReadWriteOnce; keep the labels on one"
        )
        yield Finding("nodes", message)
    held = _held_by_others(config, cluster)
    rooms = [_room(node, held) for node in found if not (node.get("spec") or {}).get("unschedulable")]
    yield from _room_problems(config, rooms, is_one=is_one)
    missing = set()
    for pods in everything:
        own = {"matchLabels": pods.spec.get("nodeSelector") or {}}
        if fitting := [room for room in rooms if matches(own, room.labels)]:
            yield from _pod_problems(config, pods, fitting)
        elif own["matchLabels"] != selector:
            missing.add(pairs(own["matchLabels"]))
    yield from map(_from_zero, sorted(missing))


def _from_zero(what: str) -> Finding:
    """A pool may have no node until a pod waits for one."""
    advice = "the run waits until an autoscaler makes one; without an autoscaler label one, or change the nodeSelector"
    return Finding("nodes", f"none has {what} now", State.WARNING, advice)


def _held_by_others(config: RunConfig, cluster: Kubectl) -> dict[str, Amounts]:
    """What pods that are not the run's hold, by node; nothing where they may not be seen."""
    held: dict[str, Amounts] = {}
    for pod in cluster.seen("pods", everywhere=True):
        node, phase = pod["spec"].get("nodeName"), (pod.get("status") or {}).get("phase")
        is_ours = (pod["metadata"].get("labels") or {}).get("scope/run") == config.name
        if node and phase not in ("Succeeded", "Failed") and not is_ours:
            count_pods(held.setdefault(node, Amounts(float)), pod["spec"], 1)
    return held


def _room(node: Body, others: Mapping[str, Amounts]) -> _Room:
    offered = {key: amount(value) for key, value in (node["status"].get("allocatable") or {}).items()}
    held = others.get(node["metadata"]["name"], Amounts(float))
    free = {key: value - held[f"requests.{key}"] for key, value in offered.items()}
    taints = (node.get("spec") or {}).get("taints") or []
    hard = [taint for taint in taints if taint.get("effect") != "PreferNoSchedule"]
    return _Room(offered, free, hard, node["metadata"].get("labels") or {})


def _room_problems(config: RunConfig, rooms: Sequence[_Room], *, is_one: bool) -> Iterator[Finding]:
    """GPUs of the largest stage, and CPU and memory where all its pods share one node."""
    usage, gpus = stage_usage(config).values(), config.cluster.gpu_resource
    reach, where = (max, "all on the one node of the volume") if is_one else (sum, "at once")
    for key in (gpus, "cpu", "memory") if is_one else (gpus,):
        wanted = max(amounts[f"requests.{key}"] for amounts in usage)
        # A node that says nothing of its CPU or memory has enough.
        unsaid = 0.0 if key == gpus else math.inf
        offered = [0.0, *(room.offered.get(key, unsaid) for room in rooms)]
        free = [0.0, *(room.free.get(key, unsaid) for room in rooms)]
        takes = f"the largest stage takes {readable(wanted)} {where}"
        if key == gpus and wanted > 0 and not any(offered):
            yield _from_zero(key)
        elif reach(offered) < wanted:
            yield Finding("nodes", f"offer {readable(reach(offered))} {key}, {takes}")
        elif reach(free) < wanted:
            held = f"(other pods hold {readable(sum(offered) - sum(free))}), {takes}; the run waits for it"
            yield Finding("nodes", f"have {readable(reach(free))} free {key} {held}")


def _pod_problems(config: RunConfig, pods: Pods, rooms: Sequence[_Room]) -> Iterator[Finding]:
    """Pods that no node has room for: GPUs, CPU, memory, and its taints."""
    needs = Amounts(float)
    count_pods(needs, pods.spec, 1)
    own = pods.spec.get("tolerations") or []
    untolerated = [
        [taint for taint in room.taints if not any(_tolerates(each, taint) for each in own)] for room in rooms
    ]
    open_rooms = [room for room, taints in zip(rooms, untolerated, strict=True) if not taints]
    if rooms and not open_rooms:
        taint = pairs({taint["key"]: taint.get("value", "") for taint in untolerated[0]})
        message = f"tolerates no node: {taint} is a taint of theirs; tolerate it in cluster.pod"
        yield Finding(pods.owner, message)
        return
    for key in (config.cluster.gpu_resource, "cpu", "memory"):
        value = needs[f"requests.{key}"]
        largest = max((room.offered.get(key, value) for room in open_rooms), default=value)
        # A pool whose nodes have no device yet is a note on all of it.
        if value > largest and (largest or "/" not in key):
            message = f"takes {readable(value)} {key} on one node, the largest offers {readable(largest)}"
            yield Finding(pods.owner, message)


def _tolerates(toleration: Body, taint: Body) -> bool:
    """One without a key, or without an effect, is for each of them."""
    fits = all(toleration.get(field) in (None, "", taint.get(field)) for field in ("key", "effect"))
    exists = toleration.get("operator") == "Exists"
    return fits and bool(exists or toleration.get("value", "") == taint.get("value", ""))


def secret_problems(config: RunConfig, cluster: Kubectl) -> Iterator[Finding]:
    """Secrets that the run names and the namespace lacks, or whose keys are others. Raises ConfigError where they may
    not be seen."""
    for setting, secret in secrets_of(config).items():
        there, where = cluster.get("secrets", secret.name), f"cluster.{setting}"
        names = f"names the Secret {secret.name}, which"
        if there is None:
            yield Finding(where, f"{names} the namespace does not have; {secret.advice}")
        elif lacking := [key for key in secret.keys if key not in (there.get("data") or {})]:
            yield Finding(where, f"{names} has no key {', '.join(lacking)}; delete it, then {secret.advice}")


OLDEST = "1.30"
"""Kubernetes release from which on runs are checked."""


def version_findings(version: str) -> list[Finding]:
    """A warning of a server that runs are not checked with; nothing of a newer one."""
    advice = (
        f"runs are checked from {OLDEST} on; on one before 1.26 add the component older-kubernetes, and leave out "
        "kueue and several nodes"
    )
    found = Finding("version", f"{version} is older than {OLDEST}", State.WARNING, advice)
    return [found] if is_older(version) else []


def is_older(version: str, oldest: str = OLDEST) -> bool:
    """Whether a server's `v1.29.3` is below a release; one that says nothing readable is not."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and tuple(map(int, found.groups())) < tuple(map(int, oldest.split(".")))
