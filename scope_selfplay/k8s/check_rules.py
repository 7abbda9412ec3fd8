"""What an API server refuses though the schema takes it: its rules that need no cluster. Objects in, problems out.
Pure.

Names, labels, ports, selectors and what contradicts itself are here, pods in `check_pods`, what a single field may hold
in `check_values`; what only a cluster knows (admission, quotas, nodes) is in `check_cluster`.
"""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from scope_selfplay.k8s.check_pods import (
    pod_problems,
    ports_problems,
    quantity_problems,
    selector_problems,
    twice,
)
from scope_selfplay.k8s.check_values import DOMAIN, KEY, LABEL, QUANTITY, VALUE, key_problems, object_values
from scope_selfplay.k8s.objects import Body, ManifestProblem, name_of, pods_of
from scope_selfplay.k8s.quantities import amount

_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_DATA_KEY = re.compile(r"(?!\.\.)(?!\.$)[-._a-zA-Z0-9]{1,253}")
_LARGEST_DATA = 2**20
_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
"""Those of Kubernetes itself: the only ones without a domain."""
_ACCESS = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def rule_problems(objects: Sequence[Body]) -> list[ManifestProblem]:
    """Every rule that an object breaks, in the order of the objects."""
    found = []
    for body in objects:
        found += [ManifestProblem(name_of(body), message) for message in _object_problems(body)]
    for pods in pods_of(objects):
        found += [ManifestProblem(pods.owner, message) for message in pod_problems(pods.spec)]
    return found


def _object_problems(body: Body) -> Iterator[str]:
    kind, metadata, spec = body.get("kind"), body.get("metadata") or {}, body.get("spec") or {}
    name = str(metadata.get("name"))
    # A Job's name is a label of its pods; before Kubernetes 1.34 a Service is named by RFC 1035.
    rule = {"Job": LABEL, "Service": _SERVICE}.get(str(kind), DOMAIN)
    if not rule.fullmatch(name):
        yield f"metadata.name is {name!r}; small letters, digits and -, at most {253 if rule is DOMAIN else 63}"
    yield from _labels(metadata)
    for finalizer in metadata.get("finalizers") or []:
        if finalizer not in _FINALIZERS and not ("/" in finalizer and KEY.fullmatch(finalizer)):
            yield f"has the finalizer {finalizer!r}; domain/name"
    yield from object_values(body)
    match kind:
        case "Job" | "Deployment":
            yield from _workload_problems(str(kind), spec)
        case "PersistentVolumeClaim":
            yield from _claim_problems(spec)
        case "Service":
            yield from _service_problems(spec)
        case "NetworkPolicy":
            yield from _policy_problems(spec)
        case "ResourceQuota":
            yield from quantity_problems("hard", spec.get("hard") or {})
        case "ConfigMap":
            yield from _data_problems(body)
        case "Role":
            yield from _role_problems(body)


def _labels(metadata: Body) -> Iterator[str]:
    yield from key_problems("labels", metadata.get("labels") or {})
    # Capitals in the domain of an annotation's key count as small letters.
    yield from key_problems("annotations", {key.lower(): key for key in metadata.get("annotations") or {}})
    for key, value in (metadata.get("labels") or {}).items():
        if isinstance(value, str) and not VALUE.fullmatch(value):
            yield f"labels.{key} is {value!r}; at most 63 letters, digits, -, _ and ."


def _workload_problems(kind: str, spec: Body) -> Iterator[str]:
    template = spec.get("template") or {}
    yield from _labels(template.get("metadata") or {})
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    allowed = ("Never", "OnFailure") if kind == "Job" else ("Always",)
    if policy not in allowed:
        yield f"has restartPolicy {policy}; {kind}s take {' or '.join(allowed)}"
    if kind == "Job":
        yield from _job_problems(spec, policy)
    elif not spec.get("selector"):
        yield "has no selector"
    else:
        yield from selector_problems("selector", spec["selector"])
        yield from _rollout_problems(spec)


def _job_problems(spec: Body, restarts: str) -> Iterator[str]:
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield "has completionMode Indexed without completions"
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    if rules and restarts != "Never":
        yield f"has a podFailurePolicy with restartPolicy {restarts}; only with Never"
    for rule in rules:
        codes = rule.get("onExitCodes") or {}
        if codes.get("operator") == "In" and 0 in (codes.get("values") or []):
            yield "has a podFailurePolicy for exit code 0, which is no failure"


def _rollout_problems(spec: Body) -> Iterator[str]:
    strategy = spec.get("strategy") or {}
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") == "Recreate" and rolling:
        yield "has the strategy Recreate with rollingUpdate; only RollingUpdate takes it"
    if all(str(rolling.get(field, 1)) in ("0", "0%") for field in ("maxSurge", "maxUnavailable")):
        yield "has maxSurge and maxUnavailable 0; one of them must let a pod be replaced"
    deadline = spec.get("progressDeadlineSeconds")
    if (600 if deadline is None else deadline) <= (spec.get("minReadySeconds") or 0):
        yield "has a progressDeadlineSeconds that is not above its minReadySeconds"


def _claim_problems(spec: Body) -> Iterator[str]:
    modes = spec.get("accessModes") or []
    if not modes or set(modes) - set(_ACCESS):
        yield f"has accessModes {modes}; one or more of {', '.join(_ACCESS)}"
    requests = (spec.get("resources") or {}).get("requests") or {}
    size = str(requests.get("storage", ""))
    if not size:
        yield "requests no storage"
    elif QUANTITY.fullmatch(size) and not amount(size):
        yield f"requests {size} storage; more than nothing"
    yield from quantity_problems("resources.requests", requests)


def _service_problems(spec: Body) -> Iterator[str]:
    ports = spec.get("ports") or []
    yield from ports_problems(ports, "port")
    if not ports and spec.get("clusterIP") != "None":
        yield "has no ports"
    yield from twice("port", (f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports))
    yield from twice("port named", (port["name"] for port in ports if "name" in port))
    if len(ports) > 1 and any("name" not in port for port in ports):
        yield "has several ports, and one without a name"
    if spec.get("type", "ClusterIP") == "ClusterIP" and any(port.get("nodePort") for port in ports):
        yield "has a nodePort; its type must be NodePort or LoadBalancer"


def _policy_problems(spec: Body) -> Iterator[str]:
    yield from selector_problems("podSelector", spec.get("podSelector") or {})
    for kind in spec.get("policyTypes") or []:
        if kind not in ("Ingress", "Egress"):
            yield f"has the policyType {kind}; Ingress or Egress"
    for rule in [*(spec.get("ingress") or []), *(spec.get("egress") or [])]:
        yield from ports_problems(rule.get("ports") or [], "port")
        for port in rule.get("ports") or []:
            if "endPort" in port and (
                not isinstance(port.get("port"), int) or port["endPort"] < port["port"]
            ):
                yield f"has the ports {port.get('port')} to {port['endPort']}; two numbers in their order"
        for peer in [*(rule.get("from") or []), *(rule.get("to") or [])]:
            yield from _peer_problems(peer)


def _peer_problems(peer: Body) -> Iterator[str]:
    block = peer.get("ipBlock") or {}
    if not peer:
        yield "has a peer that names nobody; leave out from or to for everybody"
    if block and len(peer) > 1:
        yield "has a peer with an ipBlock and a selector; one of them"
    for kind in ("podSelector", "namespaceSelector"):
        yield from selector_problems(kind, peer.get(kind) or {})
    for cidr in [block.get("cidr"), *(block.get("except") or [])] if block else []:
        if _network(str(cidr)) is None:
            yield f"has the ipBlock {cidr}, which is no network"
        elif cidr != block["cidr"] and not _is_within(str(cidr), str(block["cidr"])):
            yield f"leaves {cidr} out of the ipBlock {block['cidr']}, which does not hold it"


def _is_within(inner: str, outer: str) -> bool:
    found, around = _network(inner), _network(outer)
    if isinstance(found, IPv4Network) and isinstance(around, IPv4Network):
        return found.subnet_of(around)
    return isinstance(found, IPv6Network) and isinstance(around, IPv6Network) and found.subnet_of(around)


def _network(cidr: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(cidr, strict=False) if "/" in cidr else None
    except ValueError:
        return None


def _data_problems(body: Body) -> Iterator[str]:
    data, encoded = body.get("data") or {}, body.get("binaryData") or {}
    for key in (*data, *encoded):
        if not _DATA_KEY.fullmatch(str(key)):
            yield f"has the key {key!r}; letters, digits, -, _ and ."
    size = sum(len(str(value).encode()) for value in data.values())
    size += sum(len(value) * 3 // 4 for value in encoded.values())
    if size > _LARGEST_DATA:
        yield f"holds {size:,} bytes; at most {_LARGEST_DATA:,}"


def _role_problems(body: Body) -> Iterator[str]:
    for rule in body.get("rules") or []:
        for field in ("apiGroups", "resources", "verbs"):
            if not rule.get(field):
                yield f"has a rule without {field}"
