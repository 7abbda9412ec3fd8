"""What an API server refuses though the schema takes it: its rules that need no cluster. Objects in, problems out.
Pure.

Names, labels, ports, quantities, access modes, policies of restart, probes; what only a cluster knows (admission,
quotas, nodes) is in `check_cluster`.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scope_selfplay.k8s.objects import Body, ManifestProblem, Pods, name_of, pods_of
from scope_selfplay.k8s.quantities import amount

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_ACCESS = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_COUNTS = (
    *("activeDeadlineSeconds", "backoffLimit", "completions", "parallelism", "replicas"),
    "ttlSecondsAfterFinished",
)
_CHOICES = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}


def rule_problems(objects: Sequence[Body]) -> list[ManifestProblem]:
    """Every rule that an object breaks, in the order of the objects."""
    found = []
    for body in objects:
        found += [ManifestProblem(name_of(body), message) for message in _object_problems(body)]
    for pods in pods_of(objects):
        found += [ManifestProblem(pods.owner, message) for message in _pod_problems(pods)]
    return found


def _object_problems(body: Body) -> Iterator[str]:
    kind, metadata, spec = body.get("kind"), body.get("metadata") or {}, body.get("spec") or {}
    name = str(metadata.get("name"))
    # A Job's name is a label of its pods; before Kubernetes 1.34 a Service is named by RFC 1035.
    rule = {"Job": _LABEL, "Service": _SERVICE}.get(str(kind), _DOMAIN)
    if not rule.fullmatch(name):
        yield f"metadata.name is {name!r}; small letters, digits and -, at most {253 if rule is _DOMAIN else 63}"
    yield from _labels(metadata)
    match kind:
        case "Job" | "Deployment":
            yield from _workload_problems(str(kind), spec)
        case "PersistentVolumeClaim":
            yield from _claim_problems(spec)
        case "Service":
            yield from _ports(spec.get("ports") or [], "port")
            if not spec.get("ports") and spec.get("clusterIP") != "None":
                yield "has no ports"
        case "NetworkPolicy":
            yield from _policy_problems(spec)
        case "ResourceQuota":
            yield from _quantities("hard", spec.get("hard") or {})


def _labels(metadata: Body) -> Iterator[str]:
    for key, value in (metadata.get("labels") or {}).items():
        if not _KEY.fullmatch(str(key)):
            yield f"labels has the key {key!r}, which no API server takes"
        if isinstance(value, str) and not _VALUE.fullmatch(value):
            yield f"labels.{key} is {value!r}; at most 63 letters, digits, -, _ and ."


def _workload_problems(kind: str, spec: Body) -> Iterator[str]:
    template = spec.get("template") or {}
    yield from _labels(template.get("metadata") or {})
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    allowed = ("Never", "OnFailure") if kind == "Job" else ("Always",)
    if policy not in allowed:
        yield f"has restartPolicy {policy}; {kind}s take {' or '.join(allowed)}"
    for field in _COUNTS:
        if isinstance(spec.get(field), int) and spec[field] < 0:
            yield f"spec.{field} is {spec[field]}; at least 0"
    if kind == "Deployment" and not spec.get("selector"):
        yield "has no selector"


def _claim_problems(spec: Body) -> Iterator[str]:
    modes = spec.get("accessModes") or []
    if not modes or set(modes) - set(_ACCESS):
        yield f"has accessModes {modes}; one or more of {', '.join(_ACCESS)}"
    requests = (spec.get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        yield "requests no storage"
    yield from _quantities("resources.requests", requests)


def _policy_problems(spec: Body) -> Iterator[str]:
    for kind in spec.get("policyTypes") or []:
        if kind not in ("Ingress", "Egress"):
            yield f"has the policyType {kind}; Ingress or Egress"
    for rule in [*(spec.get("ingress") or []), *(spec.get("egress") or [])]:
        yield from _ports(rule.get("ports") or [], "port")
        for peer in [*(rule.get("from") or []), *(rule.get("to") or [])]:
            block = peer.get("ipBlock") or {}
            for cidr in [block.get("cidr"), *(block.get("except") or [])] if block else []:
                if not _is_network(str(cidr)):
                    yield f"has the ipBlock {cidr}, which is no network"


def _is_network(cidr: str) -> bool:
    try:
        ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    return "/" in cidr


def _ports(ports: Iterable[Body], field: str) -> Iterator[str]:
    for port in ports:
        for key in (field, "targetPort"):
            value = port.get(key)
            if isinstance(value, int) and not 1 <= value <= 65535:
                yield f"has {key} {value}; 1 to 65535"
            elif isinstance(value, str) and not _PORT_NAME.fullmatch(value):
                yield f"has {key} {value!r}; a port's name has at most 15 small letters, digits and -"
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield f"has the protocol {port['protocol']}; TCP, UDP or SCTP"


def _pod_problems(pods: Pods) -> Iterator[str]:
    spec = pods.spec
    yield from _twice("volume", (volume.get("name") for volume in spec.get("volumes") or []))
    yield from _twice("container", (container.get("name") for container in pods.containers))
    for volume in spec.get("volumes") or []:
        sources = sorted(set(volume) - {"name"})
        if len(sources) != 1:
            yield f"volume {volume.get('name')} has {len(sources)} sources ({', '.join(sources)}); expected one"
        if not _LABEL.fullmatch(str(volume.get("name"))):
            yield f"has a volume named {volume.get('name')!r}; small letters, digits and -, at most 63"
    for toleration in spec.get("tolerations") or []:
        yield from _toleration_problems(toleration)
    for container in pods.containers:
        yield from (
            f"container {container.get('name')}: {message}" for message in _container_problems(container)
        )


def _toleration_problems(toleration: Body) -> Iterator[str]:
    operator, key = toleration.get("operator", "Equal"), toleration.get("key", "")
    if operator == "Exists" and toleration.get("value"):
        yield f"tolerates {key} with operator Exists and a value; leave the value out, or use Equal"
    if not key and operator != "Exists":
        yield "tolerates a taint without key; only with operator Exists"
    if toleration.get("effect") and toleration["effect"] not in _EFFECTS:
        yield f"tolerates {key} with effect {toleration['effect']}; {', '.join(_EFFECTS)}"


def _container_problems(container: Body) -> Iterator[str]:
    if not _LABEL.fullmatch(str(container.get("name"))):
        yield "its name is not one of small letters, digits and -, at most 63"
    image = container.get("image")
    if not image or image != image.strip() or " " in image:
        yield f"has the image {image!r}"
    ports = container.get("ports") or []
    yield from _ports(ports, "containerPort")
    for port in ports:
        if "name" in port and not _PORT_NAME.fullmatch(str(port["name"])):
            yield f"has a port named {port['name']!r}; at most 15 small letters, digits and -"
    yield from _twice("port", (port.get("name") for port in ports if "name" in port))
    yield from _twice("mountPath", (mount.get("mountPath") for mount in container.get("volumeMounts") or []))
    for variable in container.get("env") or []:
        if not _VARIABLE.fullmatch(str(variable.get("name"))):
            yield f"has a variable named {variable.get('name')!r}"
        if variable.get("value") and variable.get("valueFrom"):
            yield f"variable {variable['name']} has both value and valueFrom"
    for field, choices in _CHOICES.items():
        if container.get(field) is not None and container[field] not in choices:
            yield f"has {field} {container[field]}; {', '.join(choices)}"
    yield from _probe_problems(container)
    yield from _resource_problems(container.get("resources") or {})


def _probe_problems(container: Body) -> Iterator[str]:
    names = {port.get("name") for port in container.get("ports") or []}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind) or {}
        for field in ("periodSeconds", "timeoutSeconds", "failureThreshold"):
            if probe.get(field, 1) < 1:
                yield f"{kind}.{field} is {probe[field]}; at least 1"
        if kind != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield f"{kind}.successThreshold is {probe['successThreshold']}; it must be 1"
        port = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
        if isinstance(port, str) and port not in names:
            yield f"{kind} asks port {port}, which it does not have"


def _resource_problems(resources: Body) -> Iterator[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    yield from _quantities("requests", requests)
    yield from _quantities("limits", limits)
    for resource in sorted({*requests, *limits}):
        asked, limit = requests.get(resource), limits.get(resource)
        if "/" in resource:
            # Devices are whole, and not shared out twice.
            if limit is None or (asked is not None and str(asked) != str(limit)):
                yield f"requests {asked} {resource} and limits {limit}; devices need equal ones"
            elif not str(limit).isdigit():
                yield f"limits {limit} {resource}; devices are whole"
        elif asked is not None and limit is not None and _more(asked, limit):
            yield f"requests {asked} {resource}, more than its limit of {limit}"


def _more(asked: Any, limit: Any) -> bool:
    both = [str(asked), str(limit)]
    return all(_QUANTITY.fullmatch(each) for each in both) and amount(asked) > amount(limit)


def _quantities(where: str, amounts: Mapping[str, Any]) -> Iterator[str]:
    for resource, quantity in amounts.items():
        if not _QUANTITY.fullmatch(str(quantity)):
            yield f"{where}.{resource} is {quantity!r}, which is no quantity such as 500m, 2 or 16Gi"


def _twice(what: str, names: Iterable[Any]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"has the {what} {name} {count} times"
