"""Whether every object finds what it names, and the NetworkPolicies let every call through. Objects in, problems out.

What a schema cannot know: a ConfigMap, claim or account that does not exist, a selector that matches no pods, a port
that no container has, a policy that forbids what a Job is told to call, or allows what no pod does; a server outside
the run that the config names and no policy lets a pod out to. Pure.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import COMPONENT, Component
from scope_selfplay.k8s.objects import Body, ManifestProblem, Pods, allows, matches, name_of, pods_of

_URL = re.compile(r"https?://[a-z0-9][a-z0-9.:-]*")
_PORTS = {"http": 80, "https": 443}
FETCHING = "fetch-model"
"""The component of pods that fetch what a run needs: the only ones that leave the cluster."""


def reference_problems(objects: Sequence[Body], elsewhere: Collection[str] = ()) -> list[ManifestProblem]:
    """Every broken reference, in the order of the objects; `elsewhere` are objects that others created, `Kind/name`."""
    names = Counter(map(name_of, objects))
    message = "appears twice; give one of them another name"
    found = [ManifestProblem(name, message) for name, count in names.items() if count > 1]
    found += [*_label_problems(objects), *_namespace_problems(objects)]
    known = {*names, *elsewhere}
    all_pods = pods_of(objects)
    data = {
        body["metadata"]["name"]: {*(body.get("data") or {}), *(body.get("binaryData") or {})}
        for body in objects
        if body.get("kind") == "ConfigMap"
    }
    for pods in all_pods:
        found += _pod_problems(pods, known)
        found += _key_problems(pods, data)
    for body in objects:
        match body.get("kind"):
            case "Deployment" | "Job":
                selector = body["spec"].get("selector")
                labels = body["spec"]["template"]["metadata"].get("labels") or {}
                if selector is not None and not matches(selector, labels):
                    found.append(ManifestProblem(name_of(body), "its selector does not match its own pods"))
            case "RoleBinding":
                for bound in (body["roleRef"], *(body.get("subjects") or [])):
                    name = f"{bound['kind']}/{bound['name']}"
                    if name not in known and not name.startswith("ClusterRole/"):
                        found.append(ManifestProblem(name_of(body), f"binds {name}, which does not exist"))
            case "Service":
                found += _service_problems(body, all_pods)
            case "NetworkPolicy":
                found += _policy_problems(body, all_pods)
    return [*found, *_call_problems(objects)]


def _label_problems(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """YAML reads an unquoted `01` or `on` as something other than text, and the server refuses it."""
    for body in objects:
        metadata = body.get("metadata") or {}
        template = ((body.get("spec") or {}).get("template") or {}).get("metadata") or {}
        for place, kind in product((metadata, template), ("labels", "annotations")):
            for key, value in (place.get(kind) or {}).items():
                if not isinstance(value, str):
                    message = f"{kind}.{key} is {value!r}, not text; put it in quotes"
                    yield ManifestProblem(name_of(body), message)


def _namespace_problems(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """An object finds by name what lies in its own namespace. Those that name none go where the others are applied."""
    named = [(name_of(body), space) for body in objects if (space := body["metadata"].get("namespace"))]
    for expected, _ in Counter(space for _, space in named).most_common(1):
        for name, space in named:
            if space != expected:
                message = f"is in the namespace {space} and finds nothing of {expected}, where the others are"
                yield ManifestProblem(name, f"{message}; set one for all, by `namespace:` of a kustomization")


def _pod_problems(pods: Pods, known: set[str]) -> Iterator[ManifestProblem]:
    account = pods.spec.get("serviceAccountName")
    if account is not None and f"ServiceAccount/{account}" not in known:
        yield ManifestProblem(pods.owner, f"runs as ServiceAccount {account}, which does not exist")
    volumes = {volume["name"]: volume for volume in pods.spec.get("volumes") or []}
    for volume in volumes.values():
        # Volumes of `cluster.volumes` exist outside the run.
        if not volume["name"].startswith("extra-"):
            yield from _volume_problems(pods.owner, volume, known)
    mounted = set()
    for container in pods.containers:
        for mount in container.get("volumeMounts") or []:
            mounted.add(mount["name"])
            if mount["name"] not in volumes:
                message = f"mounts the volume {mount['name']}, which is not among its volumes"
                yield ManifestProblem(pods.owner, message)
        for what, source in _config_sources(container):
            if not source.get("optional") and f"ConfigMap/{source['name']}" not in known:
                message = f"{what} comes from ConfigMap {source['name']}, which does not exist"
                yield ManifestProblem(pods.owner, message)
    for name in sorted(volumes.keys() - mounted):
        yield ManifestProblem(pods.owner, f"has a volume {name} that no container mounts")


def _key_problems(pods: Pods, data: Mapping[str, Collection[str]]) -> Iterator[ManifestProblem]:
    """Keys that a pod takes out of a ConfigMap that has none such: it never starts."""
    taken = [
        (source["name"], source["key"])
        for container in pods.containers
        for _, source in _config_sources(container)
        if "key" in source and not source.get("optional")
    ]
    for volume in pods.spec.get("volumes") or []:
        config = volume.get("configMap") or {}
        taken += [
            (config["name"], item["key"]) for item in config.get("items") or [] if not config.get("optional")
        ]
    for name, key in taken:
        if key not in data.get(name, [key]):
            yield ManifestProblem(pods.owner, f"takes {key} of ConfigMap {name}, which has no such key")


def _config_sources(container: Body) -> Iterator[tuple[str, Body]]:
    """The ConfigMaps from which variables come: the variable's name, and the reference."""
    for variable in container.get("env") or []:
        if source := (variable.get("valueFrom") or {}).get("configMapKeyRef"):
            yield variable["name"], source
    for group in container.get("envFrom") or []:
        if source := group.get("configMapRef"):
            yield "envFrom", source


def _volume_problems(owner: str, volume: Body, known: set[str]) -> Iterator[ManifestProblem]:
    config, claim = volume.get("configMap"), volume.get("persistentVolumeClaim")
    if config and not config.get("optional") and f"ConfigMap/{config['name']}" not in known:
        yield ManifestProblem(owner, f"mounts ConfigMap {config['name']}, which does not exist")
    if claim and f"PersistentVolumeClaim/{claim['claimName']}" not in known:
        yield ManifestProblem(owner, f"mounts the claim {claim['claimName']}, which does not exist")


def _service_problems(body: Body, pods: Sequence[Pods]) -> Iterator[ManifestProblem]:
    selector = {"matchLabels": body["spec"].get("selector") or {}}
    servers = [server for server in pods if matches(selector, server.labels)]
    if not servers:
        yield ManifestProblem(name_of(body), "its selector matches no pods")
    for port in body["spec"].get("ports") or []:
        target = port.get("targetPort")
        if isinstance(target, str) and any(target not in server.ports for server in servers):
            message = f"sends to port {target}, which {servers[0].owner} does not have"
            yield ManifestProblem(name_of(body), message)


def _policy_problems(body: Body, pods: Sequence[Pods]) -> Iterator[ManifestProblem]:
    """A rule that matches no pods allows a connection that is never used."""
    name, spec = name_of(body), body["spec"]
    chosen = [candidate for candidate in pods if matches(spec.get("podSelector"), candidate.labels)]
    # What a run prepares with is applied before it, from a folder of its own.
    if not chosen and (spec.get("podSelector") or {}).get("matchLabels", {}).get(COMPONENT) != FETCHING:
        yield ManifestProblem(name, "its podSelector matches no pods of the run")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction) or []:
            for peer in rule.get(peers) or []:
                if "podSelector" not in peer or "namespaceSelector" in peer:
                    continue
                matched = [candidate for candidate in pods if matches(peer["podSelector"], candidate.labels)]
                if not matched:
                    yield ManifestProblem(name, f"its {direction} rule matches no pods of the run")
                for listener in chosen if direction == "ingress" else matched:
                    for port in rule.get("ports") or []:
                        if isinstance(port.get("port"), str) and port["port"] not in listener.ports:
                            message = f"names port {port['port']}, which {listener.owner} does not have"
                            yield ManifestProblem(name, message)


def _call_problems(objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Every address in a container's arguments: its Service exists, and the policies let the call through."""
    for caller in pods_of(objects):
        for url in _addresses(caller):
            yield from _problems_of_call(caller, url, objects)


def _problems_of_call(caller: Pods, url: str, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    address = urlsplit(url)
    host = address.hostname or ""
    if host in ("127.0.0.1", "localhost"):
        return
    policies = [body for body in objects if body.get("kind") == "NetworkPolicy"]
    services = {body["metadata"]["name"]: body for body in objects if body.get("kind") == "Service"}
    service = services.get(host)
    if service is None:
        port = address.port or _PORTS.get(address.scheme, 80)
        if not allows(policies, "Egress", caller, None, port, pods_of(objects)):
            message = f"calls {url}, and there is no Service {host}"
            if caller.labels.get(COMPONENT) == FETCHING:
                message = f"calls {url}, and no NetworkPolicy lets it out to port {port}"
            yield ManifestProblem(caller.owner, message)
        return
    selector = {"matchLabels": service["spec"].get("selector") or {}}
    for server in (candidate for candidate in pods_of(objects) if matches(selector, candidate.labels)):
        port = _target(service, server, address.port or 80)
        if not allows(policies, "Egress", caller, server, port):
            message = f"may not call {server.owner}: no NetworkPolicy lets it out to port {port}"
            yield ManifestProblem(caller.owner, message)
        if not allows(policies, "Ingress", server, caller, port):
            message = f"refuses {caller.owner}: no NetworkPolicy lets it in on port {port}"
            yield ManifestProblem(server.owner, message)


def tool_server_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Tools that the config calls at a Service of the run's folder: whether trainers and workers reach its pods."""
    services = {body["metadata"]["name"] for body in objects if body.get("kind") == "Service"}
    callers = {pods.labels.get(COMPONENT): pods for pods in reversed(pods_of(objects))}
    for url in (url for _, url, _ in _tool_servers(config) if urlsplit(url).hostname in services):
        for component in (Component.TRAINER, Component.WORKER):
            if component in callers:
                yield from _problems_of_call(callers[component], url, objects)


def _addresses(pods: Pods) -> list[str]:
    words = [
        str(word)
        for container in pods.containers
        for word in [*(container.get("command") or []), *(container.get("args") or [])]
    ]
    return sorted({match for word in words for match in _URL.findall(word)})


def _target(service: Body, server: Pods, port: int) -> int:
    """The number of the server's port behind the Service's `port`."""
    for offered in service["spec"].get("ports") or []:
        if offered["port"] == port:
            target: Any = offered.get("targetPort", port)
            return server.ports.get(target, port) if isinstance(target, str) else int(target)
    return port


def external_server_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """One problem for each external server that some caller's NetworkPolicies keep it from."""
    policies = [body for body in objects if body.get("kind") == "NetworkPolicy"]
    services = {body["metadata"]["name"] for body in objects if body.get("kind") == "Service"}
    pods = pods_of(objects)
    by_component = {caller.labels.get(COMPONENT): caller for caller in reversed(pods)}
    for setting, url, callers in _external_servers(config):
        address = urlsplit(url)
        port = address.port or _PORTS.get(address.scheme, 80)
        # A Service of the run has been checked with the references.
        if not url or address.hostname in services:
            continue
        kept = [
            component.value
            for component in callers
            if component in by_component
            and not allows(policies, "Egress", by_component[component], None, port, pods)
        ]
        if kept:
            yield ManifestProblem(
                setting,
                f"names {url}, and no NetworkPolicy lets {' and '.join(kept)} out to port {port}; add the "
                "component external-servers (port 443), or a policy of your own",
            )


def _tool_servers(config: RunConfig) -> Iterator[tuple[str, str, tuple[Component, ...]]]:
    both = (Component.TRAINER, Component.WORKER)
    for number, entry in enumerate(config.tools):
        yield f"tools.{number}.mcp.url", (entry.mcp.url if entry.mcp else None) or "", both


def _external_servers(config: RunConfig) -> Iterator[tuple[str, str, tuple[Component, ...]]]:
    """Setting, URL and callers of every server that the run does not start itself; the URL may be empty."""
    cluster, judge, partners = config.cluster, config.judge, config.partners
    both, trainer, worker = (Component.TRAINER, Component.WORKER), (Component.TRAINER,), (Component.WORKER,)
    if judge.kind == "model":
        if not cluster.judge.serve:
            yield "judge.endpoint.base_url", judge.endpoint.base_url, both
        for role in type(judge.endpoints).model_fields:
            endpoint = getattr(judge.endpoints, role)
            yield f"judge.endpoints.{role}.base_url", endpoint.base_url if endpoint else "", both
    if not cluster.retriever.serve:
        yield "search.url", config.search.url or "", both
    if not cluster.solver.serve:
        yield "partners.solver.base_url", partners.solver.base_url or "", both
    if not cluster.challenger.serve:
        yield "partners.challenger.base_url", partners.challenger.base_url or "", worker
    yield from _tool_servers(config)
    if config.model.engine == "vllm_server":
        yield "model.vllm_url", config.model.vllm_url or "", trainer
