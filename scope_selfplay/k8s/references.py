"""Does every object find what it names? Pure: objects in, problems out.

What a schema cannot know: a ConfigMap, claim or account that is not there, a selector that means nobody, a port
that no container has, a policy that forbids what a Job is told to call, or allows what nobody does.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scope_selfplay.k8s.objects import Body, Pods, allows, matches, name_of, pods_of

_URL = re.compile(r"https?://[a-z0-9][a-z0-9.:-]*")
_HASHES = ("Job", "Deployment")


class ManifestProblem(NamedTuple):
    where: str
    """`Kind/name`."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def problems(objects: Sequence[Body], elsewhere: Collection[str] = ()) -> list[ManifestProblem]:
    """Every broken reference, in the order of the objects; `elsewhere` are those that others brought, `Kind/name`."""
    found = [*_duplicates(objects), *_labels(objects)]
    known = {name_of(body) for body in objects} | set(elsewhere)
    for pods in pods_of(objects):
        found += _pod_problems(pods, known)
    for body in objects:
        match body.get("kind"):
            case "Deployment" | "Job":
                found += _own_selector(body)
            case "RoleBinding":
                found += _binding(body, known)
            case "Service":
                found += _service(body, pods_of(objects))
            case "NetworkPolicy":
                found += _policy(body, pods_of(objects))
    return [*found, *_calls(objects)]


def _duplicates(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    seen: set[str] = set()
    for body in objects:
        name = name_of(body)
        if name in seen:
            yield ManifestProblem(name, "is there twice; give one of them another name")
        seen.add(name)


def _labels(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """YAML reads an unquoted 01 or on as no text, and the server refuses it."""
    for body in objects:
        metadata = body.get("metadata") or {}
        template = ((body.get("spec") or {}).get("template") or {}).get("metadata") or {}
        for place in (metadata, template):
            for kind in ("labels", "annotations"):
                for key, value in (place.get(kind) or {}).items():
                    if not isinstance(value, str):
                        yield ManifestProblem(
                            name_of(body), f"{kind}.{key} is {value!r}, no text; put it in quotes"
                        )


def _pod_problems(pods: Pods, known: set[str]) -> Iterator[ManifestProblem]:
    account = pods.spec.get("serviceAccountName")
    if account is not None and f"ServiceAccount/{account}" not in known:
        yield ManifestProblem(pods.owner, f"runs as ServiceAccount {account}, which is not there")
    volumes = {volume["name"]: volume for volume in pods.spec.get("volumes") or []}
    for volume in volumes.values():
        # Those of `cluster.volumes` are somebody else's.
        if not volume["name"].startswith("extra-"):
            yield from _volume(pods.owner, volume, known)
    mounted = set()
    for container in pods.containers:
        for mount in container.get("volumeMounts") or []:
            mounted.add(mount["name"])
            if mount["name"] not in volumes:
                yield ManifestProblem(
                    pods.owner, f"mounts the volume {mount['name']}, which is not among its volumes"
                )
        for each in container.get("env") or []:
            source = (each.get("valueFrom") or {}).get("configMapKeyRef")
            if source and not source.get("optional") and f"ConfigMap/{source['name']}" not in known:
                yield ManifestProblem(
                    pods.owner, f"{each['name']} comes from ConfigMap {source['name']}, which is not there"
                )
    for name in sorted(volumes.keys() - mounted):
        yield ManifestProblem(pods.owner, f"has a volume {name} that no container mounts")


def _volume(owner: str, volume: Body, known: set[str]) -> Iterator[ManifestProblem]:
    config, claim = volume.get("configMap"), volume.get("persistentVolumeClaim")
    if config and not config.get("optional") and f"ConfigMap/{config['name']}" not in known:
        yield ManifestProblem(owner, f"mounts ConfigMap {config['name']}, which is not there")
    if claim and f"PersistentVolumeClaim/{claim['claimName']}" not in known:
        yield ManifestProblem(owner, f"mounts the claim {claim['claimName']}, which is not there")


def _own_selector(body: Body) -> Iterator[ManifestProblem]:
    selector = body["spec"].get("selector")
    if selector is not None and not matches(
        selector, body["spec"]["template"]["metadata"].get("labels") or {}
    ):
        yield ManifestProblem(name_of(body), "its selector does not mean its own pods")


def _binding(body: Body, known: set[str]) -> Iterator[ManifestProblem]:
    names = [f"{body['roleRef']['kind']}/{body['roleRef']['name']}"]
    names += [f"{each['kind']}/{each['name']}" for each in body.get("subjects") or []]
    for name in names:
        if name not in known and not name.startswith("ClusterRole/"):
            yield ManifestProblem(name_of(body), f"binds {name}, which is not there")


def _service(body: Body, pods: Sequence[Pods]) -> Iterator[ManifestProblem]:
    selector = {"matchLabels": body["spec"].get("selector") or {}}
    meant = [each for each in pods if matches(selector, each.labels)]
    if not meant:
        yield ManifestProblem(name_of(body), "its selector means no pods")
    for port in body["spec"].get("ports") or []:
        target = port.get("targetPort")
        if isinstance(target, str) and any(target not in each.ports for each in meant):
            yield ManifestProblem(
                name_of(body), f"sends to port {target}, which {meant[0].owner} does not have"
            )


def _policy(body: Body, pods: Sequence[Pods]) -> Iterator[ManifestProblem]:
    """Rules that mean nobody are edges that nobody uses."""
    spec = body["spec"]
    chosen = [each for each in pods if matches(spec.get("podSelector"), each.labels)]
    if not chosen:
        yield ManifestProblem(name_of(body), "its podSelector means no pods of the run")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction) or []:
            ours = [
                each
                for each in rule.get(peers) or []
                if "podSelector" in each and "namespaceSelector" not in each
            ]
            for peer in ours:
                met = [each for each in pods if matches(peer["podSelector"], each.labels)]
                if not met:
                    yield ManifestProblem(name_of(body), f"its {direction} rule means no pods of the run")
                listeners = chosen if direction == "ingress" else met
                yield from _ports(name_of(body), rule.get("ports") or [], listeners)


def _ports(where: str, ports: Sequence[Body], listeners: Sequence[Pods]) -> Iterator[ManifestProblem]:
    for port in ports:
        name = port.get("port")
        for each in listeners:
            if isinstance(name, str) and name not in each.ports:
                yield ManifestProblem(where, f"names port {name}, which {each.owner} does not have")


def _calls(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Every address in a container's arguments: its Service exists, and the policies let the call through."""
    pods = pods_of(objects)
    policies = [body for body in objects if body.get("kind") == "NetworkPolicy"]
    services = {body["metadata"]["name"]: body for body in objects if body.get("kind") == "Service"}
    for caller in pods:
        for url in _addresses(caller):
            place = urlsplit(url)
            host, port = place.hostname or "", place.port or 80
            if host in ("127.0.0.1", "localhost"):
                continue
            service = services.get(host)
            if service is None:
                yield ManifestProblem(caller.owner, f"calls {url}, and there is no Service {host}")
                continue
            selector = {"matchLabels": service["spec"].get("selector") or {}}
            for server in (each for each in pods if matches(selector, each.labels)):
                yield from _call(policies, caller, server, _target(service, server, port))


def _call(policies: Sequence[Body], caller: Pods, server: Pods, port: int) -> Iterator[ManifestProblem]:
    if not allows(policies, "Egress", caller, server, port):
        yield ManifestProblem(
            caller.owner, f"may not call {server.owner}: no NetworkPolicy lets it out to port {port}"
        )
    if not allows(policies, "Ingress", server, caller, port):
        yield ManifestProblem(
            server.owner, f"refuses {caller.owner}: no NetworkPolicy lets it in on port {port}"
        )


def _addresses(pods: Pods) -> list[str]:
    words = [
        str(word)
        for container in pods.spec.get("containers") or []
        for word in [*(container.get("command") or []), *(container.get("args") or [])]
    ]
    return sorted({match for word in words for match in _URL.findall(word)})


def _target(service: Body, server: Pods, port: int) -> int:
    for each in service["spec"].get("ports") or []:
        if each["port"] == port:
            target: Any = each.get("targetPort", port)
            return server.ports.get(target, port) if isinstance(target, str) else int(target)
    return port
