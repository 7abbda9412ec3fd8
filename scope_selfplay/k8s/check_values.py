"""Values of single fields that no API server takes though the schema does: words, numbers and names, by their places.

A schema of Kubernetes says that a field is text or a number, and not which. Pure.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scope_selfplay.k8s.objects import Body

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
QUANTITY = re.compile(r"[+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
# A path that stays where it begins.
_BELOW = re.compile(r"(?!/)(?!(.*/)?\.\.(/|$)).+")
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)

Rule = Callable[[Any], str]
"""What is expected in place of a value; nothing where it is right."""


def _one_of(*words: str) -> Rule:
    return lambda value: "" if value in words else " or ".join(word or "''" for word in words)


def _number(low: int, high: int | None = None) -> Rule:
    def expected(value: Any) -> str:
        if not isinstance(value, int) or (value >= low and (high is None or value <= high)):
            return ""
        return f"at least {low}" if high is None else f"{low} to {high}"

    return expected


def _like(pattern: re.Pattern[str], what: str) -> Rule:
    return lambda value: "" if pattern.fullmatch(str(value)) else what


def _address(value: Any) -> str:
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        return "an IP address"
    return ""


_LABEL_RULE = _like(LABEL, "small letters, digits and -, at most 63")
_NAME_RULE = _like(DOMAIN, "small letters, digits, - and .")
_SECCOMP = _one_of("RuntimeDefault", "Localhost", "Unconfined")
_USER, _PORT, _MODE = _number(0, 2**31 - 1), _number(1, 65535), _number(0, 0o777)
_FILES = ("configMap", "secret", "projected", "downwardAPI")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")

_OBJECTS: dict[str, dict[str, Rule]] = {
    "Job": {
        **dict.fromkeys(("backoffLimit", "completions", "parallelism"), _number(0)),
        **dict.fromkeys(
            ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "backoffLimitPerIndex"), _number(0)
        ),
        "completionMode": _one_of("NonIndexed", "Indexed"),
        "podReplacementPolicy": _one_of("TerminatingOrFailed", "Failed"),
        "podFailurePolicy.rules[].action": _one_of("FailJob", "FailIndex", "Ignore", "Count"),
        "podFailurePolicy.rules[].onExitCodes.operator": _one_of("In", "NotIn"),
    },
    "Deployment": {
        **dict.fromkeys(("replicas", "minReadySeconds", "revisionHistoryLimit"), _number(0)),
        "strategy.type": _one_of("Recreate", "RollingUpdate"),
    },
    "Service": {
        "type": _one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
        "clusterIP": lambda value: "" if value in ("", "None") else _address(value),
        "sessionAffinity": _one_of("None", "ClientIP"),
        "externalTrafficPolicy": _one_of("Cluster", "Local"),
        "internalTrafficPolicy": _one_of("Cluster", "Local"),
        "ports[].nodePort": _PORT,
    },
    "PersistentVolumeClaim": {
        "volumeMode": _one_of("Filesystem", "Block"),
        "storageClassName": lambda value: _NAME_RULE(value) if value else "",
    },
}
"""By kind: path below `spec` -> rule. `[]` is every entry of a list."""

_POD: dict[str, Rule] = {
    "activeDeadlineSeconds": _number(1),
    "terminationGracePeriodSeconds": _number(0),
    "dnsPolicy": _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "dnsConfig.nameservers[]": _address,
    "preemptionPolicy": _one_of("PreemptLowerPriority", "Never"),
    "hostAliases[].ip": _address,
    "serviceAccountName": _NAME_RULE,
    "priorityClassName": _NAME_RULE,
    "runtimeClassName": _NAME_RULE,
    **dict.fromkeys(("hostname", "subdomain"), _LABEL_RULE),
    **{f"securityContext.{field}": _USER for field in ("runAsUser", "runAsGroup", "fsGroup")},
    "securityContext.fsGroupChangePolicy": _one_of("OnRootMismatch", "Always"),
    "securityContext.seccompProfile.type": _SECCOMP,
    "securityContext.sysctls[].name": _like(_SYSCTL, "a kernel's setting, such as net.core.somaxconn"),
    "topologySpreadConstraints[].maxSkew": _number(1),
    "topologySpreadConstraints[].whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
    "volumes[].emptyDir.sizeLimit": _like(QUANTITY, "a quantity such as 500Mi"),
    "volumes[].emptyDir.medium": _like(re.compile(r"(Memory|HugePages(-.+)?)?"), "'', Memory or HugePages"),
    **{f"volumes[].{kind}.defaultMode": _MODE for kind in _FILES},
    **{f"volumes[].{kind}.items[].mode": _MODE for kind in _FILES},
    **{f"volumes[].{kind}.items[].path": _like(_BELOW, "relative, and without ..") for kind in _FILES},
}

_CONTAINER: dict[str, Rule] = {
    "imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "ports[].hostPort": _PORT,
    "volumeMounts[].mountPath": lambda value: "" if value else "a path",
    "volumeMounts[].mountPropagation": _one_of("None", "HostToContainer", "Bidirectional"),
    "env[].valueFrom.fieldRef.fieldPath": _like(_FIELD, "a field of the pod, such as metadata.name"),
    **{f"securityContext.{field}": _USER for field in ("runAsUser", "runAsGroup")},
    "securityContext.procMount": _one_of("Default", "Unmasked"),
    "securityContext.seccompProfile.type": _SECCOMP,
    **{f"{probe}.httpGet.scheme": _one_of("HTTP", "HTTPS") for probe in _PROBES},
    **{f"{probe}.{way}.port": _PORT for probe in _PROBES for way in ("httpGet", "tcpSocket", "grpc")},
    **{f"{probe}.initialDelaySeconds": _number(0) for probe in _PROBES},
    **{
        f"{probe}.{field}": _number(1)
        for probe in _PROBES
        for field in ("periodSeconds", "timeoutSeconds", "failureThreshold", "terminationGracePeriodSeconds")
    },
}


def object_values(body: Body) -> Iterator[str]:
    """What an object's own fields hold; those of its pods are apart."""
    yield from _wrong(body.get("spec") or {}, _OBJECTS.get(str(body.get("kind")), {}))


def pod_values(spec: Body) -> Iterator[str]:
    yield from _wrong(spec, _POD)


def container_values(container: Body) -> Iterator[str]:
    yield from _wrong(container, _CONTAINER)


def key_problems(where: str, keys: Mapping[str, Any]) -> Iterator[str]:
    """Keys of labels, annotations and selectors."""
    for key in keys:
        if not KEY.fullmatch(str(key)):
            yield f"{where} has the key {key!r}, which no API server takes"


def _wrong(body: Body, rules: Mapping[str, Rule]) -> Iterator[str]:
    for path, rule in rules.items():
        for place, value in _found(body, path.split("."), ""):
            if expected := rule(value):
                yield f"{place} is {value!r}; {expected}"


def _found(place: Any, steps: list[str], way: str) -> Iterator[tuple[str, Any]]:
    """Every value at a path, with the number of each entry of a list."""
    if not steps:
        yield way.removesuffix("."), place
        return
    field, *rest = steps
    name = field.removesuffix("[]")
    inner = place.get(name) if isinstance(place, Mapping) else None
    if inner is None:
        return
    if field == name:
        yield from _found(inner, rest, f"{way}{name}.")
        return
    for row, each in enumerate(inner):
        yield from _found(each, rest, f"{way}{name}[{row}].")
