"""What policy engines of other people's clusters usually refuse, as a program over every object that a run has there.

Pod Security "restricted" by its own page (kubernetes.io/docs/concepts/security/pod-security-standards), then the
best-practice rules of kyverno/policies and of open-policy-agent/gatekeeper-library. Two usual ones are not kept: keys
of servers are variables, and emptyDirs have no size.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from scope_selfplay.cluster.check import check_folder, packs_of
from scope_selfplay.cluster.check_pods import reference_problems
from scope_selfplay.cluster.objects import allows, name_of, planned_objects, pods_of
from scope_selfplay.config.cluster import ClusterConfig, amount
from scope_selfplay.config.load import load_config
from tests.unit.k8s.conftest import (
    PRESETS,
    QWEN,
    REPOSITORY,
    RUNS,
    TINY,
    Body,
    applied,
    everything_of,
    text_of,
    with_components,
)

VOLUMES = set("configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret".split())
COMPONENTS = "external-servers tool-servers tracking monitoring quota disruption-budgets ranks".split()


def pod_of(body: Body) -> Body:
    found: Body = body["spec"]["template"]["spec"]
    return found


def main(body: Body) -> Body:
    found: Body = pod_of(body)["containers"][0]
    return found


def secured(body: Body) -> Iterator[Body]:
    """Security contexts of containers, with what they have of their pod."""
    outer = pod_of(body).get("securityContext") or {}
    for each in (*pod_of(body).get("initContainers", ()), *pod_of(body)["containers"]):
        yield outer | (each.get("securityContext") or {})


class Rule(NamedTuple):
    holds: Callable[[Body], bool]
    breach: Callable[[Body], object]
    """Breaks it, so that the rule is known to see something."""


def every(holds: Callable[[Body], bool]) -> Callable[[Body], bool]:
    """Of each container's security context."""
    return lambda body: all(map(holds, secured(body)))


def context(**fields: Any) -> Callable[[Body], object]:
    return lambda body: main(body)["securityContext"].update(fields)


POD_RULES = {
    "host namespaces": Rule(
        lambda body: not any(pod_of(body).get(f"host{each}") for each in ("Network", "PID", "IPC")),
        lambda body: pod_of(body).update(hostNetwork=True),
    ),
    "privileged": Rule(every(lambda found: not found.get("privileged")), context(privileged=True)),
    "capabilities": Rule(
        every(lambda found: found["capabilities"] == {"drop": ["ALL"]}), context(capabilities={"drop": []})
    ),
    "volume types": Rule(
        lambda body: all({*each} - {"name"} <= VOLUMES for each in pod_of(body).get("volumes") or []),
        lambda body: pod_of(body)["volumes"].append({"name": "root", "hostPath": {"path": "/"}}),
    ),
    "host ports": Rule(
        lambda body: not any("hostPort" in port for port in main(body).get("ports") or []),
        lambda body: main(body).update(ports=[{"containerPort": 1, "hostPort": 1}]),
    ),
    "seccomp": Rule(
        every(lambda found: found["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")),
        context(seccompProfile={"type": "Unconfined"}),
    ),
    "privilege escalation": Rule(
        every(lambda found: found.get("allowPrivilegeEscalation") is False),
        context(allowPrivilegeEscalation=True),
    ),
    "not root": Rule(
        every(lambda found: found.get("runAsNonRoot") is True and found.get("runAsUser", 0) > 0),
        context(runAsUser=0),
    ),
    "no other kernel settings": Rule(
        every(lambda found: not {"seLinuxOptions", "sysctls", "procMount", "windowsOptions"} & {*found}),
        context(procMount="Unmasked"),
    ),
    "read-only root": Rule(
        every(lambda found: found.get("readOnlyRootFilesystem") is True),
        context(readOnlyRootFilesystem=False),
    ),
    "tags": Rule(
        lambda body: (
            ":" in main(body)["image"].rpartition("/")[2] and not main(body)["image"].endswith(":latest")
        ),
        lambda body: main(body).update(image="scope"),
    ),
    "requests and limits": Rule(
        lambda body: all(
            {"cpu", "memory"} <= {*main(body)["resources"][kind]} for kind in ("requests", "limits")
        ),
        lambda body: main(body)["resources"]["limits"].pop("memory"),
    ),
    "an account of its own without a token": Rule(
        lambda body: (
            pod_of(body).get("automountServiceAccountToken") is False
            and pod_of(body).get("serviceAccountName", "default") != "default"
        ),
        lambda body: pod_of(body).update(automountServiceAccountToken=True),
    ),
    "labels": Rule(
        lambda body: "app.kubernetes.io/name" in body["spec"]["template"]["metadata"]["labels"],
        lambda body: body["spec"]["template"]["metadata"]["labels"].pop("app.kubernetes.io/name"),
    ),
    "probes of servers": Rule(
        lambda body: body["kind"] == "Job" or {"livenessProbe", "readinessProbe"} <= {*main(body)},
        lambda body: main(body).pop("livenessProbe"),
    ),
}
RULES = {
    "Role": Rule(
        lambda body: (
            not any(
                {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}
                & {*rule["resources"], *rule["verbs"]}
                for rule in body["rules"]
            )
        ),
        lambda body: body["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}),
    ),
    "Service": Rule(
        lambda body: (
            body["spec"].get("type", "ClusterIP") == "ClusterIP" and "externalIPs" not in body["spec"]
        ),
        lambda body: body["spec"].update(type="NodePort"),
    ),
}


def breaches(objects: list[Body]) -> list[str]:
    found = [
        f"{name_of(body)}: {name}"
        for body in objects
        if body["kind"] in ("Job", "Deployment")
        for name, rule in POD_RULES.items()
        if not rule.holds(body)
    ]
    found += [
        name_of(body) for body in objects if body["kind"] in RULES and not RULES[body["kind"]].holds(body)
    ]
    # Nothing is the whole cluster's, and nothing names a namespace that everybody has.
    wide = ("ClusterRole", "ClusterRoleBinding", "PersistentVolume", "StorageClass", "PriorityClass")
    return found + [
        name_of(body)
        for body in objects
        if body["kind"] in wide or body["metadata"].get("namespace") in ("default", "kube-system")
    ]


@pytest.mark.parametrize("source", [*RUNS, *PRESETS], ids=attrgetter("stem"))
def test_no_usual_policy_refuses_anything_of_a_run(source: Path, tmp_path: Path) -> None:
    folder = with_components(tmp_path, source, *COMPONENTS, text=text_of(source))
    assert breaches(everything_of(folder)) == []


MINIO = "s3://bucket/runs?endpoint=http://minio.storage:9000"
DISK = {
    "name": "data",
    "emptyDir": None,
    "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
}


@pytest.mark.parametrize("source", [QWEN, TINY], ids=attrgetter("stem"))
def test_with_a_store_each_pod_has_a_disk_of_its_own_and_only_what_copies_has_the_key(
    source: Path, tmp_path: Path
) -> None:
    settings = {
        "cluster__store": MINIO,
        "cluster__store_secret": "store",
        "cluster__pod": {"spec": {"volumes": [DISK]}},
    }
    folder = with_components(tmp_path, source, **settings)
    objects = everything_of(folder)
    assert check_folder(folder).problems == [] and breaches(objects) == []
    assert "PersistentVolumeClaim" not in {body["kind"] for body in objects}
    copying, key = set[str](), [{"secretRef": {"name": "store"}}]
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    for pods in pods_of(objects):
        (data,) = [each for each in pods.spec["volumes"] if each["name"] == "data"]
        assert data == {name: value for name, value in DISK.items() if value is not None}
        assert allows(policies, "Egress", pods, None, 9000, pods_of(objects)), pods.owner
        for container in pods.containers:
            ran = " ".join(container["command"][2:4])
            copies = ran in ("jobs pull", "jobs keep", "jobs run-controller")
            assert container.get("envFrom", []) == (key if copies else [])
            assert [each["mountPath"] for each in container["volumeMounts"]].count("/tmp/cache") == 0
            copying |= {f"{container['command'][3]} {container['name']}"} if copies else set()
    assert copying == {"pull pull", "keep main", "run-controller main"}
    # Where the way is closed, what calls says so.
    (dns,) = [body for body in policies if body["metadata"]["name"] == "scope-dns"]
    dns["spec"]["egress"].pop()
    found = {each.what for each in reference_problems(objects)}
    assert any(each.startswith("calls http://minio.storage:9000, and") for each in found)


@pytest.mark.parametrize("name", [*POD_RULES, *RULES])
def test_every_rule_sees_its_breach(name: str) -> None:
    objects = copy.deepcopy(everything_of(QWEN))
    kind = name if name in RULES else "Deployment"
    body = next(each for each in objects if each["kind"] == kind)
    (RULES | POD_RULES)[name].breach(body)
    assert breaches(objects) == [name_of(body) if name in RULES else f"{name_of(body)}: {name}"]


def test_a_queue_is_called_as_kueue_and_labels_take_it() -> None:
    """LocalQueueName of Kueue's CRDs, v1beta1 and v1beta2, is a DNS subdomain; a label's value has 63 characters."""
    for name in ("research", "team-a.research", "q" * 63):
        assert ClusterConfig(queue=name).queue == name
    for name in ("Research", "team_a", "-a", "a.", "q" * 64):
        with pytest.raises(ValidationError):
            ClusterConfig(queue=name)


KUEUE = yaml.safe_load(r"""
name: &name {type: string, maxLength: 253, pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'}
texts: &texts {type: object, additionalProperties: {type: string}}
quota: &quota
  required: [name, nominalQuota]
  additionalProperties: false
  properties:
    name: {type: string}
    nominalQuota:
      anyOf: [{type: integer}, {type: string}]
      pattern: '^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$'
flavor: &flavor
  required: [name, resources]
  additionalProperties: false
  properties: {name: *name, resources: {type: array, minItems: 1, maxItems: 64, items: *quota}}
group: &group
  required: [coveredResources, flavors]
  additionalProperties: false
  properties:
    coveredResources: {type: array, minItems: 1, maxItems: 64, items: {type: string}}
    flavors: {type: array, minItems: 1, maxItems: 64, items: *flavor}
ResourceFlavor: {additionalProperties: false, properties: {nodeLabels: {maxProperties: 8, <<: *texts}}}
ClusterQueue:
  additionalProperties: false
  properties:
    namespaceSelector: {additionalProperties: false, properties: {matchLabels: *texts}}
    resourceGroups: {type: array, maxItems: 16, items: *group}
LocalQueue: {additionalProperties: false, properties: {clusterQueue: *name}}
""")  # noqa: E501
"""Specs of v1beta2 in config/components/crd/bases of kubernetes-sigs/kueue at ff69552e79ad21652c36caa97038382e55625cf7
(23 August 2026), as far as the example goes: a server drops fields that it does not know."""


def test_the_queue_of_the_example_is_as_kueues_crds_have_it_and_has_room_for_the_run() -> None:
    flavor, cluster, local = yaml.safe_load_all((REPOSITORY / "examples" / "kueue.yaml").read_text())
    for body in (flavor, cluster, local):
        assert body["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        Draft202012Validator(KUEUE[body["kind"]]).validate(body["spec"])
    (group,) = cluster["spec"]["resourceGroups"]
    (quotas,) = (each["resources"] for each in group["flavors"])
    # A rule of the CRD's, and of the webhook's.
    assert [each["name"] for each in quotas] == group["coveredResources"]
    assert group["flavors"][0]["name"] == flavor["metadata"]["name"]
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]

    config = load_config(QWEN / "setup" / "run.yaml", [f"cluster.queue={local['metadata']['name']}"])
    room = {each["name"]: amount(each["nominalQuota"]) for each in quotas}
    asked: dict[str, Counter[str]] = {}
    for body in planned_objects(config, packs_of(applied(QWEN), config.name)):
        if "kueue.x-k8s.io/queue-name" in body["metadata"]["labels"]:
            requests = main(body)["resources"]["requests"]
            asked[name_of(body)] = Counter({name: amount(requests[name]) for name in requests})
    # Kueue admits a pod whose every resource is covered.
    assert all(each.keys() == room.keys() for each in asked.values())
    judge, trainer = asked["Deployment/qwen3-8b-judge"], asked["Job/qwen3-8b-i01-train-solver-a1"]
    assert all((judge + trainer)[name] <= room[name] for name in room)
