"""The objects of a run: those that its controller will create, and which pods a selector or a policy means.

Pure; objects are plain dicts, as YAML has them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_selfplay.cluster.pods import ManifestContext, Owner, RunStage
from scope_selfplay.cluster.servers import Server, server_deployment, server_service, servers_of
from scope_selfplay.cluster.stages import (
    StageAttempt,
    nodes_of,
    rank_service,
    shard_count,
    stage_job,
    stage_shards,
)
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.run import RunConfig
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.folder import Stage

Body = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """The pods of one Job, Deployment or Pod object."""

    owner: str
    """`Job/tiny-controller`."""
    labels: Mapping[str, str]
    spec: Body

    @property
    def ports(self) -> dict[str, int]:
        """Named container ports."""
        return {
            port["name"]: port["containerPort"]
            for container in self.containers
            for port in container.get("ports") or []
            if "name" in port
        }

    @property
    def containers(self) -> list[Body]:
        return [*(self.spec.get("initContainers") or []), *(self.spec.get("containers") or [])]


def planned_objects(
    config: RunConfig, packs: Sequence[str], iterations: Collection[int] = (0, 1)
) -> list[Body]:
    """What the controller will create: the first attempt of every stage of these iterations, with its servers; every
    Solver promoted."""
    context = _context(config, packs)
    steps = [RunStage(iteration, stage) for iteration, stage in stages_of(config) if iteration in iterations]
    bodies = [body for step in steps for body in _stage_bodies(context, step)]
    servers = {server.name: server for step in steps for server in _servers(config, step)}
    return [*bodies, *_server_bodies(context, servers.values())]


def stage_objects(config: RunConfig) -> dict[str, list[Body]]:
    """By the stage's name in Jobs, what runs at once while it does: its Jobs, its servers, the run's servers."""
    context = _context(config, ())
    found: dict[str, list[Body]] = {}
    for stage in Stage:
        step = RunStage(1, stage)
        # The Job that collects comes when the workers are done.
        bodies = _stage_bodies(context, step, at_once=shard_count(config, stage))
        found[stage.job_name] = [*bodies, *_server_bodies(context, _servers(config, step))]
    return found


def _context(config: RunConfig, packs: Sequence[str]) -> ManifestContext:
    return ManifestContext(config, "0" * 16, tuple(packs), Owner(f"{config.name}-controller", "0" * 8), 1)


def _servers(config: RunConfig, step: RunStage) -> tuple[Server, ...]:
    return servers_of(config, step, [True] * (config.iterations + 1))


def _stage_bodies(context: ManifestContext, step: RunStage, *, at_once: int | None = None) -> list[Body]:
    config = context.config
    servers = _servers(config, step)
    shards = stage_shards(shard_count(config, step.stage))[:at_once]
    bodies = [stage_job(context, StageAttempt(step, 1, shard), servers) for shard in shards]
    return [*bodies, rank_service(context, step)] if nodes_of(config, step.stage) > 1 else bodies


def _server_bodies(context: ManifestContext, servers: Iterable[Server]) -> list[Body]:
    return [make(context, server) for server in servers for make in (server_deployment, server_service)]


def name_of(body: Body) -> str:
    """`Kind/name`."""
    return f"{body.get('kind', '?')}/{(body.get('metadata') or {}).get('name', '?')}"


def pods_of(objects: Iterable[Body]) -> list[Pods]:
    """The pods of every object that has some."""
    found = []
    for body in objects:
        if body.get("kind") in ("Job", "Deployment", "StatefulSet"):
            template = body["spec"]["template"]
            found.append(Pods(name_of(body), template["metadata"].get("labels") or {}, template["spec"]))
        elif body.get("kind") == "Pod":
            found.append(Pods(name_of(body), body["metadata"].get("labels") or {}, body["spec"]))
    return found


def matches(selector: Body | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches these labels; the empty one matches every pod, and None matches none."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_fits(rule, labels) for rule in selector.get("matchExpressions") or [])


def _fits(expression: Body, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False


def allows(
    policies: Iterable[Body],
    direction: str,
    pods: Pods,
    peer: Pods | None,
    port: int,
    run: Sequence[Pods] = (),
) -> bool:
    """Whether `pods` may receive from (`Ingress`) or send to (`Egress`) `peer`, which listens on `port` if it receives;
    a peer that is None is a host outside the pods of `run`.

    Pods that no policy of the direction selects may do anything; else one rule must allow it.
    """
    listener = pods if direction == "Ingress" else peer
    chosen = [
        policy["spec"]
        for policy in policies
        if direction in (policy["spec"].get("policyTypes") or ["Ingress"])
        and matches(policy["spec"].get("podSelector"), pods.labels)
    ]
    if not chosen:
        return True
    peers = "from" if direction == "Ingress" else "to"
    return any(
        (not rule.get(peers) or any(_allows_peer(allowed, peer, run) for allowed in rule[peers]))
        and (not rule.get("ports") or any(_allows_port(allowed, listener, port) for allowed in rule["ports"]))
        for spec in chosen
        for rule in spec.get(direction.lower()) or []
    )


def _allows_peer(allowed: Body, peer: Pods | None, run: Sequence[Pods]) -> bool:
    is_outside, selector = "ipBlock" in allowed or "namespaceSelector" in allowed, allowed.get("podSelector")
    if peer is None:
        return is_outside or not any(matches(selector, pods.labels) for pods in run)
    return not is_outside and matches(selector, peer.labels)


def _allows_port(allowed: Body, listener: Pods | None, number: int) -> bool:
    port = allowed.get("port")
    if isinstance(port, int):
        return bool(port <= number <= allowed.get("endPort", port))
    return port is None or (listener is not None and listener.ports.get(str(port)) == number)


Amounts = defaultdict[str, float]
"""Resource as a ResourceQuota calls it -> amount."""


def readable(number: float) -> str:
    gibi = 2.0**30
    return f"{number / gibi:.0f}Gi" if number >= gibi else f"{number:g}"


def count_pods(found: Amounts, spec: Body, count: int) -> None:
    """Add `count` pods of this spec to `found`."""
    found["pods"] += count
    found["count/pods"] += count
    for kind in ("requests", "limits"):
        # Containers run together; of those before them the largest counts, where it is larger than all.
        together = Amounts(float)
        for container in spec.get("containers") or []:
            for resource, quantity in ((container.get("resources") or {}).get(kind) or {}).items():
                together[resource] += amount(quantity)
        for container in spec.get("initContainers") or []:
            for resource, quantity in ((container.get("resources") or {}).get(kind) or {}).items():
                together[resource] = max(together[resource], amount(quantity))
        for resource, quantity in together.items():
            found[f"{kind}.{resource}"] += quantity * count
            if kind == "requests" and resource in ("cpu", "memory"):
                found[resource] += quantity * count
