"""Whether the nodes of a cluster have room for a run now: free GPUs, CPU and memory, and taints.

What other pods hold is not free. Who may list nodes but not the pods of other namespaces is told so, and what nodes
offer is taken for free.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scope_selfplay.config import RunConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_cluster import claims_of_one_node, pairs, peak_gpus, usage_of
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, ManifestProblem, Pods, matches, pods_of, stage_objects
from scope_selfplay.k8s.quantities import Amounts, amount, count_pods, readable


@dataclass(frozen=True)
class NodeRoom:
    """What one node offers, and what of it nobody holds."""

    name: str
    offered: Mapping[str, float]
    free: Mapping[str, float]
    taints: Sequence[Body]


def node_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Nodes that the run may go to, and their room. Raises ConfigError where nodes may not be seen."""
    selector = config.cluster.node_selector
    wanted = max(peak_gpus(config).values())
    if not selector and not wanted:
        return
    found = [
        node
        for node in cluster.objects("nodes")
        if matches({"matchLabels": selector}, node["metadata"].get("labels") or {})
    ]
    if not found:
        message = f"none has {pairs(selector) or 'come up'}; label one, or change cluster.node_selector"
        yield ManifestProblem("nodes", message)
        return
    is_one = bool(claims_of_one_node(config, objects))
    if selector and is_one and len(found) > 1:
        yield ManifestProblem(
            "nodes",
            f"{len(found)} have {pairs(selector)}, and the volume is ReadWriteOnce; keep the labels on one",
        )
    rooms = _rooms(config, found, _others(config, cluster))
    yield from _gpu_problems(config, rooms, wanted, is_one=is_one)
    yield from _pod_problems(config, objects, rooms)
    if is_one:
        yield from _one_node_room(config, rooms)


def gpus_offered(node: Body, resource: str) -> float:
    """GPUs that pods may take on this node."""
    return amount(node["status"].get("allocatable", {}).get(resource, 0))


def _others(config: RunConfig, cluster: Kubectl) -> dict[str, Amounts]:
    """What pods that are not the run's hold, by node; nothing where they may not be seen."""
    try:
        pods = cluster.objects("pods", everywhere=True)
    except ConfigError:
        return {}
    held: dict[str, Amounts] = {}
    for pod in pods:
        node, phase = pod["spec"].get("nodeName"), (pod.get("status") or {}).get("phase")
        is_ours = (pod["metadata"].get("labels") or {}).get("scope/run") == config.name
        if node and phase not in ("Succeeded", "Failed") and not is_ours:
            count_pods(held.setdefault(node, Amounts(float)), pod["spec"], 1)
    return held


def _rooms(config: RunConfig, nodes: Sequence[Body], others: Mapping[str, Amounts]) -> list[NodeRoom]:
    rooms = []
    for node in nodes:
        spec, name = node.get("spec") or {}, node["metadata"]["name"]
        offered = {key: amount(value) for key, value in (node["status"].get("allocatable") or {}).items()}
        held = others.get(name, Amounts(float))
        free = {key: value - held[f"requests.{key}"] for key, value in offered.items()}
        taints = [taint for taint in spec.get("taints") or [] if taint.get("effect") != "PreferNoSchedule"]
        if not spec.get("unschedulable"):
            rooms.append(NodeRoom(name, offered, free, taints))
    return rooms


def _gpu_problems(
    config: RunConfig, rooms: Sequence[NodeRoom], wanted: int, *, is_one: bool
) -> Iterator[ManifestProblem]:
    resource = config.cluster.gpu_resource
    offered, free = (
        [values.get(resource, 0.0) for values in which]
        for which in ([room.offered for room in rooms], [room.free for room in rooms])
    )
    reach = max if is_one else sum
    where = "all on the one node of the volume" if is_one else "at once"
    if reach([0.0, *offered]) < wanted:
        message = f"offer {reach([0.0, *offered]):.0f} {resource}, the largest stage takes {wanted} {where}"
        yield ManifestProblem("nodes", message)
    elif reach([0.0, *free]) < wanted:
        taken, left = sum(offered) - sum(free), reach([0.0, *free])
        yield ManifestProblem(
            "nodes",
            f"have {left:.0f} free {resource} (other pods hold {taken:.0f}), the largest stage takes {wanted} {where}; "
            "the run waits until they are given back",
        )


def _pod_problems(
    config: RunConfig, objects: Sequence[Body], rooms: Sequence[NodeRoom]
) -> Iterator[ManifestProblem]:
    """Pods that no node has room for: GPUs, CPU, memory, and its taints."""
    resource = config.cluster.gpu_resource
    for pods in pods_of(objects):
        needs = Amounts(float)
        count_pods(needs, pods.spec, 1)
        asked = {key: needs[f"requests.{key}"] for key in (resource, "cpu", "memory")}
        open_rooms = [room for room in rooms if not (_untolerated(pods, room))]
        if rooms and not open_rooms:
            taint = pairs({taint["key"]: taint.get("value", "") for taint in _untolerated(pods, rooms[0])})
            yield ManifestProblem(
                pods.owner, f"tolerates no node: {taint} is a taint of theirs; see cluster.tolerations"
            )
            continue
        for key, value in asked.items():
            largest = max((room.offered.get(key, value) for room in open_rooms), default=value)
            if value > largest:
                what = f"takes {readable(value)} {key} on one node, the largest offers {readable(largest)}"
                yield ManifestProblem(pods.owner, what)


def _untolerated(pods: Pods, room: NodeRoom) -> list[Body]:
    tolerations = pods.spec.get("tolerations") or []
    return [taint for taint in room.taints if not any(_tolerates(each, taint) for each in tolerations)]


def _tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return True
    same = toleration["key"] == taint["key"]
    exists = toleration.get("operator") == "Exists"
    return same and (exists or toleration.get("value", "") == taint.get("value", ""))


def _one_node_room(config: RunConfig, rooms: Sequence[NodeRoom]) -> Iterator[ManifestProblem]:
    """CPU and memory of the largest stage where all its pods share one node."""
    stages = {stage: usage_of(bodies) for stage, bodies in stage_objects(config).items()}
    for key in ("cpu", "memory"):
        stage = max(stages, key=lambda name: stages[name][f"requests.{key}"])
        wanted = stages[stage][f"requests.{key}"]
        free = max((room.free.get(key, wanted) for room in rooms), default=0.0)
        if wanted > free:
            yield ManifestProblem(
                "nodes",
                f"have {readable(free)} free {key} on the one node of the volume, the stage {stage} takes "
                f"{readable(wanted)}",
            )
