"""The objects of a run: those that its controller will create, and which pods a selector or a policy means.

Pure; objects are plain dicts, as YAML has them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from scope_selfplay.cluster.pods import Body, ManifestContext, Owner, RunStage
from scope_selfplay.cluster.prepare import stage_pulls
from scope_selfplay.cluster.stages import (
    StageAttempt,
    nodes_of,
    rank_service,
    server_deployment,
    server_service,
    servers_of,
    shard_count,
    stage_job,
    stage_shards,
)
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.run import RunConfig
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.folder import Stage

Amounts = defaultdict[str, float]
"""Resource as a ResourceQuota calls it -> amount."""


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
    """What the controller will create in these iterations."""
    steps = [RunStage(iteration, stage) for iteration, stage in stages_of(config) if iteration in iterations]
    bodies = [body for step in steps for body in step_objects(config, packs, step)]
    return list({name_of(body): body for body in bodies}.values())


def step_objects(
    config: RunConfig, packs: Sequence[str], step: RunStage, *, at_once: bool = False
) -> list[Body]:
    """The first attempt of a stage and all its servers, every Solver promoted.

    `at_once`: without the Job that collects when the workers are done.
    """
    owner = Owner(f"{config.name}-controller", "0" * 8)
    context = ManifestContext(config, "0" * 16, tuple(packs), owner, 1)
    promoted = [True] * (config.iterations + 1)
    servers = servers_of(config, step, promoted)
    count = shard_count(config, step.stage)
    shards = stage_shards(count)[: count if at_once else None]
    pulls = stage_pulls(config, step, promoted)
    bodies = [stage_job(context, StageAttempt(step, 1, shard), servers, pulls) for shard in shards]
    bodies += [rank_service(context, step)] if nodes_of(config, step.stage) > 1 else []
    makers = (server_deployment, server_service)
    return [*bodies, *(make(context, server) for server in servers for make in makers)]


def stage_usage(config: RunConfig, beside: Sequence[Body] = ()) -> dict[str, Amounts]:
    """By the stage's name in Jobs, what is taken at once while it runs: by its Jobs, its servers, those of the run, and
    what is `beside` them."""
    return {
        stage.job_name: usage_of([*beside, *step_objects(config, (), RunStage(1, stage), at_once=True)])
        for stage in Stage
    }


COUNTED = {
    "Job": ("jobs", "count/jobs.batch"),
    "Deployment": ("deployments", "count/deployments.apps"),
    "Service": ("services", "services", "count/services"),
}
"""Kind -> its plural, and the resources of a quota that count it."""


def usage_of(objects: Sequence[Body]) -> Amounts:
    """What these Jobs, Deployments and Services take of a quota while all of them run."""
    found = Amounts(float)
    for body in objects:
        for resource in COUNTED.get(str(body["kind"]), ("",))[1:]:
            found[resource] += 1
        for pods in pods_of([body]):
            spec = body["spec"]
            count_pods(found, pods.spec, int(spec.get("parallelism", spec.get("replicas", 1))))
    return found


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
    found, values = labels.get(expression["key"]), expression.get("values") or []
    fits = {
        "In": found in values,
        "NotIn": found not in values,
        "Exists": found is not None,
        "DoesNotExist": found is None,
    }
    return fits.get(expression["operator"], False)


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


def port_of(url: str) -> int:
    """The port that is called."""
    address = urlsplit(url)
    return address.port or (443 if address.scheme == "https" else 80)


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
