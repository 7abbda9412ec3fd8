"""Faults for `scope k8s check`, each with what it says: fields that the schema takes and an API server refuses."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from scope_selfplay.cluster.check import config_of, packs_of
from scope_selfplay.cluster.objects import planned_objects
from tests.unit.k8s.conftest import REPOSITORY, applied

Objects = list[dict[str, Any]]
Fault = Callable[[Objects], None]
TINY = REPOSITORY / "k8s/runs/tiny"
CONTROLLER, JUDGE = ("Job", "tiny-controller"), ("Deployment", "tiny-judge")
POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"


@cache
def _given() -> Objects:
    given = applied(TINY)
    return [*given, *planned_objects(config_of(given, TINY), packs_of(given, "tiny"))]


def tiny_objects() -> Objects:
    return copy.deepcopy(_given())


def find(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    return next(body for body in objects if body["kind"] == kind and body["metadata"]["name"] == name)


def changed(which: tuple[str, str], path: str, value: Any) -> Fault:
    """Set a field; the last step `+` adds to a list."""

    def change(objects: Objects) -> None:
        place: Any = find(objects, *which)
        *way, last = path.split("/")
        for step in way:
            place = (
                place[int(step)] if isinstance(place, list) else place.setdefault(step.replace("~", "/"), {})
            )
        if last == "+":
            place.append(value)
        else:
            place[int(last) if isinstance(place, list) else last.replace("~", "/")] = value

    return change


CLAIM, SERVICE, POLICY = (
    ("PersistentVolumeClaim", "scope-data"),
    ("Service", "tiny-judge"),
    ("NetworkPolicy", "scope-dns"),
)
VOLUME = f"{POD}/volumes/1"


def variable(**source: Any) -> Fault:
    return changed(CONTROLLER, f"{MAIN}/env/+", {"name": "A", "valueFrom": source})


def files(item: dict[str, str]) -> Fault:
    return changed(CONTROLLER, VOLUME, {"name": "tmp", "configMap": {"name": "tiny-config", "items": [item]}})


PLANTED: dict[str, tuple[Fault, str]] = {
    "envFrom": (
        changed(CONTROLLER, f"{MAIN}/envFrom", [{"configMapRef": {"name": "absent"}}]),
        "envFrom comes from ConfigMap absent, which does not exist",
    ),
    "restart of a Job": (changed(CONTROLLER, f"{POD}/restartPolicy", "Always"), "restartPolicy Always"),
    "restart of a server": (changed(JUDGE, f"{POD}/restartPolicy", "Never"), "restartPolicy Never"),
    "GPUs unlike": (
        changed(JUDGE, f"{MAIN}/resources", {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}),
        "devices need equal ones",
    ),
    "GPUs without limit": (
        changed(JUDGE, f"{MAIN}/resources", {"requests": {"nvidia.com/gpu": "1"}}),
        "requests 1 nvidia.com/gpu and limits None",
    ),
    "half a GPU": (
        changed(JUDGE, f"{MAIN}/resources", {"limits": {"nvidia.com/gpu": "500m"}}),
        "devices are whole",
    ),
    "more than the limit": (
        changed(JUDGE, f"{MAIN}/resources", {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}),
        "requests 2 cpu, more than its limit",
    ),
    "quantity": (changed(JUDGE, f"{MAIN}/resources/limits/memory", "4 GB"), "is '4 GB', which is no quantity"),
    "size": (changed(CLAIM, "spec/resources/requests/storage", "1TB"), "is '1TB', which is no quantity"),
    "no size": (changed(CLAIM, "spec/resources", {}), "resources.requests.storage is None, which is no quantity"),
    "access mode": (changed(CLAIM, "spec/accessModes", ["ReadWriteAll"]), "has accessModes ['ReadWriteAll']"),
    "no access mode": (changed(CLAIM, "spec/accessModes", []), "has accessModes []"),
    "name": (changed(CLAIM, "metadata/name", "Scope_Data"), "metadata.name is 'Scope_Data'"),
    "name of a Service": (changed(SERVICE, "metadata/name", "1judge"), "metadata.name is '1judge'"),
    "long name": (changed(CONTROLLER, "metadata/name", "a" * 64), "at most 63"),
    "label": (changed(CONTROLLER, "metadata/labels/team", "a b"), "labels.team is 'a b'"),
    "key of a label": (changed(CONTROLLER, "metadata/labels/a b", "x"), "labels has the key 'a b'"),
    "port": (changed(SERVICE, "spec/ports/0/port", 80000), "has port 80000; 1 to 65535"),
    "port of a container": (changed(JUDGE, f"{MAIN}/ports/0/containerPort", 0), "has containerPort 0"),
    "port of a policy": (changed(POLICY, "spec/egress/0/ports/0/port", 0), "has port 0; 1 to 65535"),
    "volume twice": (
        changed(CONTROLLER, f"{POD}/volumes/+", {"name": "tmp", "emptyDir": {}}),
        "has the volume tmp 2 times",
    ),
    "volume of two kinds": (
        changed(CONTROLLER, f"{POD}/volumes/1/configMap", {"name": "tiny-config"}),
        "volume tmp has 2 sources",
    ),
    "container twice": (
        changed(CONTROLLER, f"{POD}/initContainers/0/name", "main"),
        "has the container main 2 times",
    ),
    "path twice": (
        changed(CONTROLLER, f"{MAIN}/volumeMounts/+", {"name": "tmp", "mountPath": "/data"}),
        "has the mountPath /data 2 times",
    ),
    "image": (changed(CONTROLLER, f"{MAIN}/image", ""), "has the image ''"),
    "file of no key": (
        files({"key": "absent", "path": "a"}),
        "takes absent of ConfigMap tiny-config, which has no such key",
    ),
    "variable of no key": (
        variable(configMapKeyRef={"name": "tiny-config", "key": "absent"}),
        "takes absent of ConfigMap tiny-config",
    ),
}  # fmt: skip
UNENFORCED = ("envFrom", "file of no key", "variable of no key")
"""What Kubernetes' reference rules out and an API server takes: the pod does not start, or not as it is written."""
