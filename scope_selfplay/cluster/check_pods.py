"""Whether every object finds what it names and keeps the commonest rules of an API server, and the NetworkPolicies let
every call through. Objects in, problems out. Pure.

What a schema cannot know: a ConfigMap, claim or account that does not exist, a Service that reaches no pods or no port,
a policy that forbids what a Job is told to call, a server outside the run that no policy lets a pod out to. Of the
server's rules those that a person who edits a folder is likely to break: names, labels, restarts, ports, quantities,
volumes. Everything else the server itself says in a dry run: `scope k8s check --cluster`.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from scope_selfplay.base.errors import Finding
from scope_selfplay.cluster.objects import Pods, allows, matches, name_of, pods_of, port_of
from scope_selfplay.cluster.pods import Body, Component, Label
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.run import RunConfig

_URL = re.compile(r"https?://[a-z0-9][a-z0-9.:-]*")
_BOTH = (Component.TRAINER, Component.WORKER)
FETCHING = "fetch-model"
"""The component of pods that fetch what a run needs: the only ones that leave the cluster."""


def reference_problems(objects: Sequence[Body], elsewhere: Collection[str] = ()) -> list[Finding]:
    """Every broken reference, in the order of the objects; `elsewhere` are objects that others created, `Kind/name`."""
    names, all_pods = Counter(map(name_of, objects)), pods_of(objects)
    message = "appears twice; give one of them another name"
    found = [Finding(name, message) for name, count in names.items() if count > 1]
    found += _namespace_problems(objects)
    known = {name: {name} for name in [*names, *elsewhere]}
    for body in objects:
        if body.get("kind") == "ConfigMap":
            known[name_of(body)] = {*(body.get("data") or {}), *(body.get("binaryData") or {})}
    for pods in all_pods:
        found += _pod_problems(pods, known)
    for body in objects:
        found += _object_problems(body, all_pods, known)
    for pods in all_pods:
        told = str([(each.get("command"), each.get("args")) for each in pods.containers])
        for url in sorted(set(_URL.findall(told))):
            if urlsplit(url).hostname not in ("127.0.0.1", "localhost"):
                found += _call_problems(pods, url, objects, all_pods)
    return found


def _namespace_problems(objects: Sequence[Body]) -> Iterator[Finding]:
    """An object finds by name what lies in its own namespace. Those that name none go where the others are applied."""
    named = [(name_of(body), space) for body in objects if (space := body["metadata"].get("namespace"))]
    for expected, _ in Counter(space for _, space in named).most_common(1):
        for name, space in named:
            if space != expected:
                message = f"is in the namespace {space} and finds nothing of {expected}, where the others are"
                yield Finding(name, f"{message}; set one for all, by `namespace:` of a kustomization")


def _pod_problems(pods: Pods, known: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    for what, kind, name, keys in _references(pods):
        keys_there = known.get(f"{kind}/{name}")
        if keys_there is None:
            yield Finding(pods.owner, f"{what} {name}, which does not exist")
        elif lacking := [key for key in keys if key not in keys_there]:
            # Its pod never starts.
            yield Finding(pods.owner, f"takes {lacking[0]} of {kind} {name}, which has no such key")


def _references(pods: Pods) -> Iterator[tuple[str, str, str, list[str]]]:
    """What a pod cannot start without: in words, its kind, its name, and keys of it."""
    if account := pods.spec.get("serviceAccountName"):
        yield "runs as ServiceAccount", "ServiceAccount", account, []
    sources = []
    for volume in pods.spec.get("volumes") or []:
        # What these volumes of `cluster.pod` mount exists outside the run.
        if not volume["name"].startswith("extra-"):
            sources.append(("mounts ConfigMap", volume.get("configMap")))
            if claim := volume.get("persistentVolumeClaim"):
                yield "mounts the claim", "PersistentVolumeClaim", claim["claimName"], []
    for container in pods.containers:
        for variable in container.get("env") or []:
            source = (variable.get("valueFrom") or {}).get("configMapKeyRef")
            sources.append((f"{variable['name']} comes from ConfigMap", source))
        for group in container.get("envFrom") or []:
            sources.append(("envFrom comes from ConfigMap", group.get("configMapRef")))
    for what, source in sources:
        if source and not source.get("optional"):
            keys = [item["key"] for item in [source, *(source.get("items") or [])] if "key" in item]
            yield what, "ConfigMap", source["name"], keys


def _object_problems(body: Body, pods: Sequence[Pods], known: Collection[str]) -> Iterator[Finding]:
    name, spec = name_of(body), body.get("spec") or {}
    match body.get("kind"):
        case "RoleBinding":
            for bound in (body["roleRef"], *(body.get("subjects") or [])):
                if bound["kind"] != "ClusterRole" and f"{bound['kind']}/{bound['name']}" not in known:
                    yield Finding(name, f"binds {bound['kind']}/{bound['name']}, which does not exist")
        case "Service":
            servers = _behind(body, pods)
            if not servers:
                yield Finding(name, "its selector matches no pods")
            targets = [port.get("targetPort") for port in spec.get("ports") or []]
            for target in (each for each in targets if isinstance(each, str)):
                if any(target not in server.ports for server in servers):
                    yield Finding(name, f"sends to port {target}, which {servers[0].owner} does not have")


def _behind(service: Body, pods: Sequence[Pods]) -> list[Pods]:
    selector = {"matchLabels": service["spec"].get("selector") or {}}
    return [each for each in pods if matches(selector, each.labels)]


def _call_problems(
    caller: Pods, url: str, objects: Sequence[Body], pods: Sequence[Pods]
) -> Iterator[Finding]:
    """The Service of an address exists, and the policies let the call through."""
    policies, services = _named(objects, "NetworkPolicy").values(), _named(objects, "Service")
    address = urlsplit(url)
    service = services.get(address.hostname or "")
    if service is None:
        port = port_of(url)
        if not allows(policies, "Egress", caller, None, port, pods):
            message = f"calls {url}, and there is no Service {address.hostname}"
            if caller.labels.get(Label.COMPONENT) == FETCHING:
                message = f"calls {url}, and no NetworkPolicy lets it out to port {port}"
            yield Finding(caller.owner, message)
        return
    offered = {
        each["port"]: each.get("targetPort", each["port"]) for each in service["spec"].get("ports") or []
    }
    target = offered.get(address.port or 80, address.port or 80)
    for server in _behind(service, pods):
        port = server.ports.get(target, address.port or 80) if isinstance(target, str) else target
        if not allows(policies, "Egress", caller, server, port):
            message = f"may not call {server.owner}: no NetworkPolicy lets it out to port {port}"
            yield Finding(caller.owner, message)
        if not allows(policies, "Ingress", server, caller, port):
            message = f"refuses {caller.owner}: no NetworkPolicy lets it in on port {port}"
            yield Finding(server.owner, message)


def _named(objects: Sequence[Body], kind: str) -> dict[str, Body]:
    return {body["metadata"]["name"]: body for body in objects if body.get("kind") == kind}


def server_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[Finding]:
    """Servers that the run does not start itself, and some caller's NetworkPolicies keep it from."""
    pods, services = pods_of(objects), _named(objects, "Service")
    by_component = {caller.labels.get(Label.COMPONENT): caller for caller in reversed(pods)}
    for setting, url, components in _external_servers(config):
        address = urlsplit(url)
        callers = [by_component[each] for each in components if each in by_component]
        if address.hostname in services:
            # Those of tools alone are in no container's arguments.
            for caller in callers if setting.startswith("tools.") else ():
                yield from _call_problems(caller, url, objects, pods)
        elif url:
            url = config.cluster.proxy if config.cluster.proxy and address.scheme == "https" else url
            port = port_of(url)
            policies = _named(objects, "NetworkPolicy").values()
            kept = [each for each in callers if not allows(policies, "Egress", each, None, port, pods)]
            if kept:
                who = " and ".join(each.labels[Label.COMPONENT] for each in kept)
                yield Finding(
                    setting,
                    f"names {url}, and no NetworkPolicy lets {who} out to port {port}; add the "
                    "component external-servers (port 443), or a policy of your own",
                )


def _external_servers(config: RunConfig) -> Iterator[tuple[str, str, Sequence[Component]]]:
    """Setting, URL and callers of every server that the run does not start itself; one without a URL may have ""."""
    cluster, judge, partners = config.cluster, config.judge, config.partners
    asks_model = judge.kind == "model"
    if asks_model and not cluster.judge.serve:
        for url in judge.endpoint.each_url:
            yield "judge.endpoint.base_url", url, _BOTH
    for question, endpoint in judge.endpoints.items() if asks_model else ():
        for url in endpoint.each_url:
            yield f"judge.endpoints.{question}.base_url", url, _BOTH
    for server, setting, urls, callers in (
        (cluster.retriever, "search.url", (config.search.url or "",), _BOTH),
        (cluster.solver, "partners.solver.base_url", partners.solver.each_url, _BOTH),
        (cluster.challenger, "partners.challenger.base_url", partners.challenger.each_url, _BOTH[1:]),
    ):
        for url in () if server.serve else urls:
            yield setting, url, callers
    for number, entry in enumerate(config.tools):
        yield f"tools.{number}.mcp.url", (entry.mcp.url if entry.mcp else None) or "", _BOTH
    if config.model.engine == "vllm_server":
        yield "model.vllm_url", config.model.vllm_url or "", _BOTH[:1]


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_ACCESS = {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}


def rule_problems(objects: Sequence[Body]) -> list[Finding]:
    """Every rule that an object breaks, in the order of the objects."""
    return [Finding(name_of(body), message) for body in objects for message in _broken_rules(body)]


def _broken_rules(body: Body) -> Iterator[str]:
    kind, metadata, spec = str(body.get("kind")), body.get("metadata") or {}, body.get("spec") or {}
    # A Job's name is a label of its pods; before Kubernetes 1.34 a Service is named by RFC 1035.
    rule = {"Job": _LABEL, "Service": _SERVICE}.get(kind, _DOMAIN)
    if not rule.fullmatch(name := str(metadata.get("name"))):
        yield f"metadata.name is {name!r}; small letters, digits and -, at most {253 if rule is _DOMAIN else 63}"
    for key, value in (metadata.get("labels") or {}).items():
        if not _KEY.fullmatch(str(key)):
            yield f"labels has the key {key!r}, which no API server takes"
        if not _VALUE.fullmatch(str(value)):
            yield f"labels.{key} is {value!r}; at most 63 letters, digits, -, _ and ."
    for (pods,) in [pods_of([body])] if kind in ("Job", "Deployment") else ():
        restarts, allowed = pods.spec.get("restartPolicy", "Always"), ("Never", "OnFailure")
        if (restarts in allowed) != (kind == "Job"):
            yield f"has restartPolicy {restarts}; {kind}s take {' or '.join(allowed if kind == 'Job' else ['Always'])}"
        yield from _broken_in_pods(pods)
    if kind == "PersistentVolumeClaim":
        modes, requests = spec.get("accessModes") or [], (spec.get("resources") or {}).get("requests") or {}
        if not modes or set(modes) - _ACCESS:
            yield f"has accessModes {modes}; one or more of {', '.join(sorted(_ACCESS))}"
        yield from _quantities("resources.requests", {"storage": None, **requests})
    for ruled in (spec, *(spec.get("ingress") or []), *(spec.get("egress") or [])):
        yield from _ports(ruled.get("ports") or [], "port")


def _broken_in_pods(pods: Pods) -> Iterator[str]:
    volumes = pods.spec.get("volumes") or []
    yield from _twice("volume", volumes, "name")
    yield from _twice("container", pods.containers, "name")
    for volume in volumes:
        if len(sources := sorted(set(volume) - {"name"})) != 1:
            yield f"volume {volume.get('name')} has {len(sources)} sources ({', '.join(sources)}); expected one"
    for container in pods.containers:
        if not container.get("image"):
            yield f"container {container.get('name')} has the image {container.get('image')!r}"
        yield from _ports(container.get("ports") or [], "containerPort")
        yield from _twice("mountPath", container.get("volumeMounts") or [], "mountPath")
        yield from _resources(container.get("resources") or {})


def _resources(resources: Body) -> Iterator[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    yield from _quantities("requests", requests)
    yield from _quantities("limits", limits)
    for resource in sorted({*requests, *limits}):
        asked, limit = requests.get(resource), limits.get(resource)
        if "/" in resource:
            # Devices are whole, and none is shared out twice.
            if limit is None or (asked is not None and str(asked) != str(limit)):
                yield f"requests {asked} {resource} and limits {limit}; devices need equal ones"
            elif not str(limit).isdigit():
                yield f"limits {limit} {resource}; devices are whole"
        elif all(_QUANTITY.fullmatch(str(each)) for each in (asked, limit)) and amount(asked) > amount(limit):
            yield f"requests {asked} {resource}, more than its limit of {limit}"


def _ports(ports: Sequence[Body], field: str) -> Iterator[str]:
    for name, value in ((name, port.get(name)) for port in ports for name in (field, "targetPort")):
        if isinstance(value, int) and not 1 <= value <= 65535:
            yield f"has {name} {value}; 1 to 65535"


def _quantities(where: str, amounts: Mapping[str, object]) -> Iterator[str]:
    for resource, quantity in amounts.items():
        if not _QUANTITY.fullmatch(str(quantity)):
            yield f"{where}.{resource} is {quantity!r}, which is no quantity such as 500m, 2 or 16Gi"


def _twice(what: str, entries: Sequence[Body], field: str) -> Iterator[str]:
    for name, count in Counter(entry.get(field) for entry in entries).items():
        if count > 1:
            yield f"has the {what} {name} {count} times"
