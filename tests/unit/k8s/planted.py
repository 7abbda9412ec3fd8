"""Faults for `scope k8s check`, each with what it says: fields that the schema takes and an API server refuses."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from scope_selfplay.k8s.check import config_of, packs_of
from scope_selfplay.k8s.objects import planned_objects
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
CONFIG, ROLE, PEERS = ("ConfigMap", "tiny-config"), ("Role", "scope-controller"), "spec/egress/0/to/+"
SECURITY, OF_POD, VOLUME = f"{MAIN}/securityContext", f"{POD}/securityContext", f"{POD}/volumes/1"
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def node_affinity(**rule: Any) -> Fault:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", **rule}]}]}
    return changed(CONTROLLER, f"{POD}/affinity", {"nodeAffinity": {TERMS: terms}})


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
    "no size": (changed(CLAIM, "spec/resources", {}), "requests no storage"),
    "access mode": (changed(CLAIM, "spec/accessModes", ["ReadWriteAll"]), "has accessModes ['ReadWriteAll']"),
    "no access mode": (changed(CLAIM, "spec/accessModes", []), "has accessModes []"),
    "name": (changed(CLAIM, "metadata/name", "Scope_Data"), "metadata.name is 'Scope_Data'"),
    "name of a Service": (changed(SERVICE, "metadata/name", "1judge"), "metadata.name is '1judge'"),
    "long name": (changed(CONTROLLER, "metadata/name", "a" * 64), "at most 63"),
    "label": (changed(CONTROLLER, "metadata/labels/team", "a b"), "labels.team is 'a b'"),
    "key of a label": (changed(CONTROLLER, "metadata/labels/a b", "x"), "labels has the key 'a b'"),
    "port": (changed(SERVICE, "spec/ports/0/port", 80000), "has port 80000; 1 to 65535"),
    "port of a container": (changed(JUDGE, f"{MAIN}/ports/0/containerPort", 0), "has containerPort 0"),
    "name of a port": (changed(JUDGE, f"{MAIN}/ports/0/name", "http_judge_of_run"), "a port named 'http_judge_of_run'"),
    "protocol": (changed(SERVICE, "spec/ports/0/protocol", "HTTP"), "has the protocol HTTP"),
    "port of a policy": (changed(POLICY, "spec/egress/0/ports/0/port", 0), "has port 0; 1 to 65535"),
    "network": (
        changed(POLICY, "spec/egress/0/to/+", {"ipBlock": {"cidr": "10.0.0.300/8"}}),
        "the ipBlock 10.0.0.300/8, which is no network",
    ),
    "direction": (changed(POLICY, "spec/policyTypes", ["egress"]), "has the policyType egress"),
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
    "variable": (changed(CONTROLLER, f"{MAIN}/env/0/name", "1 HUB"), "has a variable named '1 HUB'"),
    "variable of two kinds": (
        changed(CONTROLLER, f"{MAIN}/env/0/valueFrom", {"fieldRef": {"fieldPath": "metadata.name"}}),
        "has both value and valueFrom",
    ),
    "image": (changed(CONTROLLER, f"{MAIN}/image", ""), "has the image ''"),
    "pull policy": (changed(CONTROLLER, f"{MAIN}/imagePullPolicy", "Sometimes"), "imagePullPolicy is 'Sometimes'"),
    "probe": (changed(JUDGE, f"{MAIN}/livenessProbe/successThreshold", 2), "successThreshold is 2; it must be 1"),
    "period": (changed(JUDGE, f"{MAIN}/readinessProbe/periodSeconds", -1), "periodSeconds is -1; at least 1"),
    "deadline": (changed(CONTROLLER, "spec/activeDeadlineSeconds", -5), "activeDeadlineSeconds is -5; at least 0"),
    "toleration": (
        changed(CONTROLLER, f"{POD}/tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]),
        "with operator Exists and a value",
    ),
    "effect": (
        changed(CONTROLLER, f"{POD}/tolerations", [{"key": "a", "operator": "Exists", "effect": "NoStart"}]),
        "with effect NoStart",
    ),
    "strategy of two kinds": (
        changed(JUDGE, "spec/strategy/rollingUpdate", {"maxSurge": 1}),
        "has the strategy Recreate with rollingUpdate",
    ),
    "indexed without completions": (
        changed(CONTROLLER, "spec/completionMode", "Indexed"),
        "has completionMode Indexed without completions",
    ),
    "grace": (
        changed(CONTROLLER, f"{POD}/terminationGracePeriodSeconds", -1),
        "terminationGracePeriodSeconds is -1; at least 0",
    ),
    "path with a colon": (changed(JUDGE, f"{MAIN}/volumeMounts/0/mountPath", "/data:rw"), "without colons"),
    "absolute subPath": (changed(JUDGE, f"{MAIN}/volumeMounts/0/subPath", "/runs"), "has the subPath '/runs'"),
    "subPath that leaves": (changed(JUDGE, f"{MAIN}/volumeMounts/0/subPath", "a/../.."), "relative, and without .."),
    "probe of two kinds": (
        changed(JUDGE, f"{MAIN}/livenessProbe/exec", {"command": ["true"]}),
        "livenessProbe asks in 2 ways (exec, httpGet)",
    ),
    "probe of no kind": (changed(JUDGE, f"{MAIN}/readinessProbe", {"periodSeconds": 5}), "asks in 0 ways"),
    "no selector": (changed(JUDGE, "spec/selector", {}), "has no selector"),
    "huge pages unlike": (
        changed(JUDGE, f"{MAIN}/resources", {"requests": {"hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}),
        "huge pages need equal ones",
    ),
    "device without domain": (
        changed(JUDGE, f"{MAIN}/resources", {"limits": {"gpu": "1"}}),
        "asks for gpu; a device has a domain",
    ),
    "size of a folder": (
        changed(CONTROLLER, f"{VOLUME}/emptyDir/sizeLimit", "5 GB"),
        "emptyDir.sizeLimit is '5 GB'; a quantity",
    ),
    "kind of memory": (changed(CONTROLLER, f"{VOLUME}/emptyDir/medium", "RAM"), "emptyDir.medium is 'RAM'"),
    "mode of files": (
        changed(CONTROLLER, VOLUME, {"name": "tmp", "configMap": {"name": "tiny-config", "defaultMode": 1000}}),
        "defaultMode is 1000; 0 to 511",
    ),
    "file that leaves": (files({"key": "run.yaml", "path": "../a"}), "items[0].path is '../a'; relative"),
    "file of no key": (
        files({"key": "absent", "path": "a"}),
        "takes absent of ConfigMap tiny-config, which has no such key",
    ),
    "variable of no key": (
        variable(configMapKeyRef={"name": "tiny-config", "key": "absent"}),
        "takes absent of ConfigMap tiny-config",
    ),
    "variable of two sources": (
        variable(fieldRef={"fieldPath": "metadata.name"}, secretKeyRef={"name": "s", "key": "k"}),
        "comes from 2 sources (fieldRef, secretKeyRef)",
    ),
    "variable of no source": (variable(), "comes from 0 sources"),
    "field of a pod": (variable(fieldRef={"fieldPath": "metadata.ip"}), "fieldPath is 'metadata.ip'"),
    "root": (changed(CONTROLLER, f"{SECURITY}/runAsUser", 0), "has runAsNonRoot and runAsUser 0"),
    "user": (changed(CONTROLLER, f"{SECURITY}/runAsUser", -1), "runAsUser is -1; 0 to 2147483647"),
    "privileges": (
        changed(CONTROLLER, f"{SECURITY}/privileged", True),
        "is privileged with allowPrivilegeEscalation false",
    ),
    "profile of no name": (changed(CONTROLLER, f"{OF_POD}/seccompProfile/type", "Localhost"), "seccompProfile Localh"),
    "kind of profile": (
        changed(CONTROLLER, f"{OF_POD}/seccompProfile/type", "Default"),
        "seccompProfile.type is 'Default'",
    ),
    "group of files": (changed(CONTROLLER, f"{OF_POD}/fsGroupChangePolicy", "Never"), "fsGroupChangePolicy is 'Never'"),
    "what is mounted of /proc": (changed(CONTROLLER, f"{SECURITY}/procMount", "None"), "procMount is 'None'"),
    "kernel's setting": (
        changed(CONTROLLER, f"{OF_POD}/sysctls", [{"name": "a b", "value": "1"}]),
        "sysctls[0].name is 'a b'",
    ),
    "standing rollout": (
        changed(
            JUDGE,
            "spec/strategy",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}},
        ),
        "has maxSurge and maxUnavailable 0",
    ),
    "kind of strategy": (changed(JUDGE, "spec/strategy/type", "Replace"), "strategy.type is 'Replace'; Recreate or"),
    "progress": (changed(JUDGE, "spec/progressDeadlineSeconds", 0), "progressDeadlineSeconds that is not above"),
    "negative seconds": (changed(JUDGE, "spec/minReadySeconds", -1), "minReadySeconds is -1; at least 0"),
    "type of a Service": (changed(SERVICE, "spec/type", "Cluster"), "type is 'Cluster'; ClusterIP or"),
    "port twice": (changed(SERVICE, "spec/ports/+", {"name": "again", "port": 8000}), "has the port 8000/TCP 2 times"),
    "ports without names": (changed(SERVICE, "spec/ports", [{"port": 8000}, {"port": 8001}]), "and one without a name"),
    "address of a Service": (
        changed(SERVICE, "spec/clusterIP", "300.1.2.3"),
        "clusterIP is '300.1.2.3'; an IP address",
    ),
    "port of a node": (changed(SERVICE, "spec/ports/0/nodePort", 30001), "has a nodePort"),
    "sessions": (changed(SERVICE, "spec/sessionAffinity", "Client"), "sessionAffinity is 'Client'"),
    "names of nobody": (
        changed(CONTROLLER, f"{POD}/dnsPolicy", "None"),
        "the dnsPolicy None without dnsConfig.nameservers",
    ),
    "kind of names": (changed(CONTROLLER, f"{POD}/dnsPolicy", "Cluster"), "dnsPolicy is 'Cluster'"),
    "alias": (
        changed(CONTROLLER, f"{POD}/hostAliases", [{"ip": "300.0.0.1", "hostnames": ["a"]}]),
        "hostAliases[0].ip is '300.0.0.1'",
    ),
    "spread": (
        changed(
            CONTROLLER,
            f"{POD}/topologySpreadConstraints",
            [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
        ),
        "maxSkew is 0; at least 1",
    ),
    "affinity to nothing": (node_affinity(operator="In"), "nodeAffinity has the operator In with 0 values"),
    "affinity by a wrong word": (node_affinity(operator="Is", values=["a"]), "nodeAffinity has the operator Is;"),
    "affinity to nowhere": (
        changed(
            CONTROLLER,
            f"{POD}/affinity",
            {"podAffinity": {TERMS: [{"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": ""}]}},
        ),
        "podAffinity has a term without topologyKey",
    ),
    "label of a node": (changed(CONTROLLER, f"{POD}/nodeSelector", {"a b": "c"}), "nodeSelector has the key 'a b'"),
    "seconds of a toleration": (
        changed(
            CONTROLLER,
            f"{POD}/tolerations",
            [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}],
        ),
        "for tolerationSeconds; only with effect NoExecute",
    ),
    "last port first": (changed(POLICY, "spec/egress/0/ports/0/endPort", 1), "has the ports 53 to 1"),
    "peer of two kinds": (
        changed(POLICY, PEERS, {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        "with an ipBlock and a selector",
    ),
    "peer of no kind": (changed(POLICY, PEERS, {}), "has a peer that names nobody"),
    "left out of another network": (
        changed(POLICY, PEERS, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}}),
        "leaves 192.168.0.0/16 out of the ipBlock 10.0.0.0/8",
    ),
    "selector of nothing": (
        changed(POLICY, "spec/podSelector", {"matchExpressions": [{"key": "a", "operator": "In"}]}),
        "podSelector has the operator In with 0 values",
    ),
    "key of a ConfigMap": (changed(CONFIG, "data/a b", "x"), "has the key 'a b'; letters"),
    "large ConfigMap": (changed(CONFIG, "data/big", "x" * 2**20), "bytes; at most 1,048,576"),
    "key of an annotation": (changed(CONTROLLER, "metadata/annotations/a b", "x"), "annotations has the key 'a b'"),
    "rights to do nothing": (changed(ROLE, "rules/0/verbs", []), "has a rule without verbs"),
    "rights to no group": (changed(ROLE, "rules/0/apiGroups", []), "has a rule without apiGroups"),
    "paths of two kinds": (
        changed(JUDGE, f"{MAIN}/volumeMounts/0", {"name": "tmp", "mountPath": "/", "subPath": "a", "subPathExpr": "a"}),
        "has both subPath and subPathExpr",
    ),
    "no path": (changed(JUDGE, f"{MAIN}/volumeMounts/0/mountPath", ""), "mountPath is ''; a path"),
    "mounts that spread": (
        changed(JUDGE, f"{MAIN}/volumeMounts/0/mountPropagation", "Shared"),
        "mountPropagation is 'Shared'",
    ),
    "probe of what begins": (
        changed(CONTROLLER, f"{POD}/initContainers/0/livenessProbe", {"tcpSocket": {"port": 80}}),
        "has livenessProbe; one that begins a pod has none",
    ),
    "scheme of a probe": (
        changed(JUDGE, f"{MAIN}/livenessProbe/httpGet/scheme", "http"),
        "scheme is 'http'; HTTP or HTTPS",
    ),
    "port of a probe": (
        changed(JUDGE, f"{MAIN}/livenessProbe/httpGet/port", 70000),
        "httpGet.port is 70000; 1 to 65535",
    ),
    "delay of a probe": (
        changed(JUDGE, f"{MAIN}/livenessProbe/initialDelaySeconds", -3),
        "initialDelaySeconds is -3; at least 0",
    ),
    "no storage": (changed(CLAIM, "spec/resources/requests/storage", "0"), "requests 0 storage"),
    "kind of a volume": (changed(CLAIM, "spec/volumeMode", "File"), "volumeMode is 'File'; Filesystem or Block"),
    "class of storage": (changed(CLAIM, "spec/storageClassName", "Fast_SSD"), "storageClassName is 'Fast_SSD'"),
    "kind of completion": (changed(CONTROLLER, "spec/completionMode", "Ordered"), "completionMode is 'Ordered'"),
    "failure of success": (
        changed(
            CONTROLLER,
            "spec/podFailurePolicy",
            {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]},
        ),
        "for exit code 0, which is no failure",
    ),
    "port of the host": (changed(JUDGE, f"{MAIN}/ports/0/hostPort", 99999), "hostPort is 99999; 1 to 65535"),
    "name of an account": (
        changed(CONTROLLER, f"{POD}/serviceAccountName", "Scope_Controller"),
        "serviceAccountName is 'Scope_Controller'",
    ),
    "name of a host": (changed(CONTROLLER, f"{POD}/hostname", "Host_1"), "hostname is 'Host_1'"),
    "no time": (changed(CONTROLLER, f"{POD}/activeDeadlineSeconds", 0), "activeDeadlineSeconds is 0; at least 1"),
    "pre-emption": (changed(CONTROLLER, f"{POD}/preemptionPolicy", "Sometimes"), "preemptionPolicy is 'Sometimes'"),
    "finalizer without a domain": (
        changed(CONFIG, "metadata/finalizers", ["keep"]),
        "has the finalizer 'keep'; domain/name",
    ),
    "name of a finalizer": (
        changed(CLAIM, "metadata/finalizers", ["example.org/keep it"]),
        "has the finalizer 'example.org/keep it'",
    ),
}  # fmt: skip
UNENFORCED = (
    *("envFrom", "file of no key", "grace", "kind of memory", "path with a colon", "root"),
    *("variable of no key", "what is mounted of /proc"),
)
"""What Kubernetes' reference rules out and an API server takes: the pod does not start, or not as it is written."""
