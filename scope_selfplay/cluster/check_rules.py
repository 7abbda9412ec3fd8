"""What an API server refuses though the schema takes it, as far as a person who edits a folder is likely to write it:
names, labels, ports, restarts, quantities, what a volume offers. Objects in, problems out. Pure.

Everything else the server itself says in a dry run: `scope k8s check --cluster`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scope_selfplay.base.errors import Finding
from scope_selfplay.cluster.objects import Body, name_of, pods_of
from scope_selfplay.config.cluster import amount

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_ACCESS = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_LARGEST_DATA = 2**20


def rule_problems(objects: Sequence[Body]) -> list[Finding]:
    """Every rule that an object breaks, in the order of the objects."""
    found = []
    for body in objects:
        found += [Finding(name_of(body), message) for message in _object_problems(body)]
    for pods in pods_of(objects):
        found += [Finding(pods.owner, message) for message in _pod_problems(pods.spec)]
    return found


def _object_problems(body: Body) -> Iterator[str]:
    kind, metadata, spec = str(body.get("kind")), body.get("metadata") or {}, body.get("spec") or {}
    # A Job's name is a label of its pods; before Kubernetes 1.34 a Service is named by RFC 1035.
    rule = {"Job": _LABEL, "Service": _SERVICE}.get(kind, _DOMAIN)
    if not rule.fullmatch(name := str(metadata.get("name"))):
        yield f"metadata.name is {name!r}; small letters, digits and -, at most {253 if rule is _DOMAIN else 63}"
    yield from _label_problems(metadata.get("labels") or {})
    match kind:
        case "Job" | "Deployment":
            yield from _workload_problems(kind, spec)
        case "PersistentVolumeClaim":
            yield from _claim_problems(spec)
        case "Service" | "NetworkPolicy":
            rules = [spec, *(spec.get("ingress") or []), *(spec.get("egress") or [])]
            yield from _port_problems([port for rule in rules for port in rule.get("ports") or []], "port")
        case "ResourceQuota":
            yield from _quantity_problems("hard", spec.get("hard") or {})
        case "ConfigMap":
            size = sum(len(str(value).encode()) for value in (body.get("data") or {}).values())
            if size > _LARGEST_DATA:
                yield f"holds {size:,} bytes; at most {_LARGEST_DATA:,}"


def _label_problems(labels: Mapping[str, Any]) -> Iterator[str]:
    for key, value in labels.items():
        if not _KEY.fullmatch(str(key)):
            yield f"labels has the key {key!r}, which no API server takes"
        if isinstance(value, str) and not _VALUE.fullmatch(value):
            yield f"labels.{key} is {value!r}; at most 63 letters, digits, -, _ and ."


def _workload_problems(kind: str, spec: Body) -> Iterator[str]:
    template = spec.get("template") or {}
    yield from _label_problems((template.get("metadata") or {}).get("labels") or {})
    restarts = (template.get("spec") or {}).get("restartPolicy", "Always")
    allowed = ("Never", "OnFailure") if kind == "Job" else ("Always",)
    if restarts not in allowed:
        yield f"has restartPolicy {restarts}; {kind}s take {' or '.join(allowed)}"
    if kind == "Deployment" and not spec.get("selector"):
        yield "has no selector"
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield "has completionMode Indexed without completions"
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    if rules and restarts != "Never":
        yield f"has a podFailurePolicy with restartPolicy {restarts}; only with Never"
    codes = [rule["onExitCodes"] for rule in rules if rule.get("onExitCodes")]
    if any(each.get("operator") == "In" and 0 in (each.get("values") or []) for each in codes):
        yield "has a podFailurePolicy for exit code 0, which is no failure"


def _claim_problems(spec: Body) -> Iterator[str]:
    modes = spec.get("accessModes") or []
    if not modes or set(modes) - set(_ACCESS):
        yield f"has accessModes {modes}; one or more of {', '.join(_ACCESS)}"
    requests = (spec.get("resources") or {}).get("requests") or {}
    if not requests.get("storage"):
        yield "requests no storage"
    yield from _quantity_problems("resources.requests", requests)


def _pod_problems(spec: Body) -> Iterator[str]:
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    yield from _twice("volume", spec.get("volumes") or [], "name")
    yield from _twice("container", containers, "name")
    for volume in spec.get("volumes") or []:
        if len(sources := sorted(set(volume) - {"name"})) != 1:
            yield f"volume {volume.get('name')} has {len(sources)} sources ({', '.join(sources)}); expected one"
    for container in containers:
        yield from (f"container {container.get('name')}: {each}" for each in _container_problems(container))


def _container_problems(container: Body) -> Iterator[str]:
    if not _LABEL.fullmatch(str(container.get("name"))):
        yield "its name is not one of small letters, digits and -, at most 63"
    if not container.get("image"):
        yield f"has the image {container.get('image')!r}"
    yield from _port_problems(container.get("ports") or [], "containerPort")
    yield from _twice("mountPath", container.get("volumeMounts") or [], "mountPath")
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    yield from _quantity_problems("requests", requests)
    yield from _quantity_problems("limits", limits)
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


def _port_problems(ports: Iterable[Body], field: str) -> Iterator[str]:
    for port in ports:
        for key in (field, "targetPort"):
            value = port.get(key)
            if isinstance(value, int) and not 1 <= value <= 65535:
                yield f"has {key} {value}; 1 to 65535"
        # The name of a policy's port is in `port` itself.
        for name in (port.get("name"), port.get(field), port.get("targetPort")):
            if isinstance(name, str) and not _PORT_NAME.fullmatch(name):
                yield f"has a port named {name!r}; at most 15 small letters, digits and -"
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield f"has the protocol {port['protocol']}; TCP, UDP or SCTP"


def _quantity_problems(where: str, amounts: Mapping[str, Any]) -> Iterator[str]:
    for resource, quantity in amounts.items():
        if not _QUANTITY.fullmatch(str(quantity)):
            yield f"{where}.{resource} is {quantity!r}, which is no quantity such as 500m, 2 or 16Gi"


def _twice(what: str, entries: Iterable[Body], field: str) -> Iterator[str]:
    for name, count in Counter(entry.get(field) for entry in entries).items():
        if count > 1:
            yield f"has the {what} {name} {count} times"
