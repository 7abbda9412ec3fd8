"""What an API server refuses in the pods of an object though the schema takes it: fields that contradict each other.

What a single field may hold is in `check_values`. Pure.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from scope_selfplay.k8s.check_values import (
    LABEL,
    QUANTITY,
    VALUE,
    container_values,
    key_problems,
    pod_values,
)
from scope_selfplay.k8s.objects import Body
from scope_selfplay.k8s.quantities import amount

_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_OF_VALUES = ("In", "NotIn")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_HANDLERS = {"exec", "grpc", "httpGet", "tcpSocket"}


def pod_problems(spec: Body) -> Iterator[str]:
    """Every rule that the spec of a pod breaks."""
    yield from pod_values(spec)
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    yield from twice("volume", (volume.get("name") for volume in spec.get("volumes") or []))
    yield from twice("container", (container.get("name") for container in containers))
    for volume in spec.get("volumes") or []:
        sources = sorted(set(volume) - {"name"})
        if len(sources) != 1:
            yield f"volume {volume.get('name')} has {len(sources)} sources ({', '.join(sources)}); expected one"
        if not LABEL.fullmatch(str(volume.get("name"))):
            yield f"has a volume named {volume.get('name')!r}; small letters, digits and -, at most 63"
    for toleration in spec.get("tolerations") or []:
        yield from _toleration_problems(toleration)
    yield from _placing_problems(spec)
    yield from _seccomp_problems(spec.get("securityContext") or {})
    for container in containers:
        context = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
        found = [*_container_problems(container), *_privilege_problems(context)]
        found += _seccomp_problems(container.get("securityContext") or {})
        yield from (f"container {container.get('name')}: {message}" for message in found)
    for container in spec.get("initContainers") or []:
        never = sorted({"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"} & {*container})
        if never and container.get("restartPolicy") != "Always":
            yield f"container {container.get('name')} has {never[0]}; one that begins a pod has none"


def selector_problems(where: str, selector: Body, with_values: Collection[str] = _OF_VALUES) -> Iterator[str]:
    """Of a LabelSelector, or of one term of a node's affinity, whose operators may compare numbers, too."""
    yield from key_problems(where, selector.get("matchLabels") or {})
    for rule in selector.get("matchExpressions") or []:
        operator, values = rule.get("operator"), rule.get("values") or []
        if operator not in (*with_values, "Exists", "DoesNotExist"):
            yield f"{where} has the operator {operator}; {', '.join(with_values)}, Exists or DoesNotExist"
        elif (operator in with_values) != bool(values):
            yield f"{where} has the operator {operator} with {len(values)} values"


def ports_problems(ports: Iterable[Body], field: str) -> Iterator[str]:
    for port in ports:
        for key in (field, "targetPort"):
            value = port.get(key)
            if isinstance(value, int) and not 1 <= value <= 65535:
                yield f"has {key} {value}; 1 to 65535"
            elif isinstance(value, str) and not _PORT_NAME.fullmatch(value):
                yield f"has {key} {value!r}; a port's name has at most 15 small letters, digits and -"
        if port.get("protocol", "TCP") not in ("TCP", "UDP", "SCTP"):
            yield f"has the protocol {port['protocol']}; TCP, UDP or SCTP"


def quantity_problems(where: str, amounts: Mapping[str, Any]) -> Iterator[str]:
    for resource, quantity in amounts.items():
        if not QUANTITY.fullmatch(str(quantity)):
            yield f"{where}.{resource} is {quantity!r}, which is no quantity such as 500m, 2 or 16Gi"


def twice(what: str, names: Iterable[Any]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"has the {what} {name} {count} times"


def _placing_problems(spec: Body) -> Iterator[str]:
    """Where its pods go, and whom they ask for names."""
    selector = spec.get("nodeSelector") or {}
    yield from key_problems("nodeSelector", selector)
    for key, value in selector.items():
        if not VALUE.fullmatch(str(value)):
            yield f"nodeSelector.{key} is {value!r}; at most 63 letters, digits, -, _ and ."
    if spec.get("dnsPolicy") == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        yield "has the dnsPolicy None without dnsConfig.nameservers"
    affinity = spec.get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
    for term in required.get("nodeSelectorTerms") or []:
        yield from selector_problems("nodeAffinity", term, (*_OF_VALUES, "Gt", "Lt"))
    for kind in ("podAffinity", "podAntiAffinity"):
        for term in (affinity.get(kind) or {}).get(_REQUIRED) or []:
            yield from selector_problems(kind, term.get("labelSelector") or {})
            if not term.get("topologyKey"):
                yield f"{kind} has a term without topologyKey"


def _toleration_problems(toleration: Body) -> Iterator[str]:
    operator, key = toleration.get("operator", "Equal"), toleration.get("key", "")
    effect = toleration.get("effect")
    if operator not in ("Exists", "Equal"):
        yield f"tolerates {key} with operator {operator}; Exists or Equal"
    if operator == "Exists" and toleration.get("value"):
        yield f"tolerates {key} with operator Exists and a value; leave the value out, or use Equal"
    if not key and operator != "Exists":
        yield "tolerates a taint without key; only with operator Exists"
    if effect and effect not in _EFFECTS:
        yield f"tolerates {key} with effect {effect}; {', '.join(_EFFECTS)}"
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        yield f"tolerates {key} for tolerationSeconds; only with effect NoExecute"


def _seccomp_problems(context: Body) -> Iterator[str]:
    profile = context.get("seccompProfile") or {}
    if profile and (profile.get("type") == "Localhost") != bool(profile.get("localhostProfile")):
        yield f"has a seccompProfile {profile.get('type')}; Localhost, and no other, names a localhostProfile"


def _privilege_problems(context: Body) -> Iterator[str]:
    """Of a container's security context, with what its pod's says."""
    added = (context.get("capabilities") or {}).get("add") or []
    if context.get("allowPrivilegeEscalation") is False and (
        context.get("privileged") or "CAP_SYS_ADMIN" in added
    ):
        yield "is privileged with allowPrivilegeEscalation false"
    # A server takes it, and no node starts it.
    if context.get("runAsNonRoot") and context.get("runAsUser") == 0:
        yield "has runAsNonRoot and runAsUser 0; another user"


def _container_problems(container: Body) -> Iterator[str]:
    yield from container_values(container)
    if not LABEL.fullmatch(str(container.get("name"))):
        yield "its name is not one of small letters, digits and -, at most 63"
    image = container.get("image")
    if not image or image != image.strip() or " " in image:
        yield f"has the image {image!r}"
    ports = container.get("ports") or []
    yield from ports_problems(ports, "containerPort")
    for port in ports:
        if "name" in port and not _PORT_NAME.fullmatch(str(port["name"])):
            yield f"has a port named {port['name']!r}; at most 15 small letters, digits and -"
    yield from twice("port", (port.get("name") for port in ports if "name" in port))
    yield from _mount_problems(container.get("volumeMounts") or [])
    for variable in container.get("env") or []:
        yield from _variable_problems(variable)
    yield from _probe_problems(container)
    yield from _resource_problems(container.get("resources") or {})


def _mount_problems(mounts: Iterable[Body]) -> Iterator[str]:
    yield from twice("mountPath", (mount.get("mountPath") for mount in mounts))
    for mount in mounts:
        path, below = str(mount.get("mountPath")), str(mount.get("subPath", ""))
        if ":" in path:
            yield f"has the mountPath {path!r}; without colons"
        if below.startswith("/") or ".." in below.split("/"):
            yield f"has the subPath {below!r}; relative, and without .."
        if below and mount.get("subPathExpr"):
            yield f"has both subPath and subPathExpr at {path}"


def _variable_problems(variable: Body) -> Iterator[str]:
    name, source = variable.get("name"), variable.get("valueFrom")
    if not _VARIABLE.fullmatch(str(name)):
        yield f"has a variable named {name!r}"
    if variable.get("value") and source:
        yield f"variable {name} has both value and valueFrom"
    if source is not None and len(source) != 1:
        yield f"variable {name} comes from {len(source)} sources ({', '.join(sorted(source))}); expected one"


def _probe_problems(container: Body) -> Iterator[str]:
    names = {port.get("name") for port in container.get("ports") or []}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind) or {}
        handlers = sorted(_HANDLERS & {*probe})
        if probe and len(handlers) != 1:
            yield f"{kind} asks in {len(handlers)} ways ({', '.join(handlers)}); expected one"
        if kind != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield f"{kind}.successThreshold is {probe['successThreshold']}; it must be 1"
        port = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
        if isinstance(port, str) and port not in names:
            yield f"{kind} asks port {port}, which it does not have"


def _resource_problems(resources: Body) -> Iterator[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    yield from quantity_problems("requests", requests)
    yield from quantity_problems("limits", limits)
    for resource in sorted({*requests, *limits}):
        asked, limit = requests.get(resource), limits.get(resource)
        is_device, is_pages = "/" in resource, resource.startswith("hugepages-")
        if not is_device and not is_pages and resource not in _STANDARD:
            yield f"asks for {resource}; a device has a domain, such as nvidia.com/gpu"
        elif is_device or is_pages:
            # Devices are whole, and neither is shared out twice.
            if limit is None or (asked is not None and str(asked) != str(limit)):
                what = "devices" if is_device else "huge pages"
                yield f"requests {asked} {resource} and limits {limit}; {what} need equal ones"
            elif is_device and not str(limit).isdigit():
                yield f"limits {limit} {resource}; devices are whole"
        elif asked is not None and limit is not None and _more(asked, limit):
            yield f"requests {asked} {resource}, more than its limit of {limit}"


def _more(asked: Any, limit: Any) -> bool:
    both = [str(asked), str(limit)]
    return all(QUANTITY.fullmatch(each) for each in both) and amount(asked) > amount(limit)
