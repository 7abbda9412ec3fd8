"""What a schema cannot know: planted mistakes, each found and named without a cluster.

`tests/cluster` plants those of `PLANTED` and asks a real server.
"""

import pytest

from scope_selfplay.cluster.check_pods import reference_problems, rule_problems
from scope_selfplay.cluster.objects import Pods, allows, pods_of
from tests.unit.k8s.planted import PLANTED, SERVICE, Fault, Objects, changed, find, tiny_objects


@pytest.fixture
def objects() -> Objects:
    return tiny_objects()


def without(kind: str, name: str) -> Fault:
    return lambda objects: objects.remove(find(objects, kind, name))


MISTAKES = [
    (without("ConfigMap", "tiny-config"), "mounts ConfigMap tiny-config, which does not exist"),
    (without("PersistentVolumeClaim", "scope-data"), "the claim scope-data, which does not exist"),
    (without("ServiceAccount", "scope-worker"), "ServiceAccount scope-worker, which does not exist"),
    (without("Role", "scope-controller"), "binds Role/scope-controller"),
    (without("Service", "tiny-judge"), "there is no Service tiny-judge"),
    (without("NetworkPolicy", "scope-servers"), "refuses Job/tiny-i"),
    (without("NetworkPolicy", "scope-worker"), "may not call Deployment/tiny-"),
    (changed(SERVICE, "spec/selector/scope~server", "other"), "its selector matches no pods"),
    (changed(SERVICE, "spec/ports/0/targetPort", "web"), "port web"),
    (lambda objects: objects.append(objects[0]), "appears twice"),
]


def problems(objects: Objects) -> list[str]:
    return [str(each) for each in [*rule_problems(objects), *reference_problems(objects)]]


def test_a_run_of_the_repository_breaks_no_rule(objects: Objects) -> None:
    assert problems(objects) == []


@pytest.mark.parametrize(
    ("mistake", "message"),
    [*PLANTED.values(), *MISTAKES],
    ids=[*PLANTED, *(message for _, message in MISTAKES)],
)
def test_a_planted_mistake_is_found(objects: Objects, mistake: Fault, message: str) -> None:
    mistake(objects)
    found = problems(objects)
    assert any(message in each for each in found), found


def test_objects_of_two_namespaces_do_not_find_each_other(objects: Objects) -> None:
    for body in objects:
        body["metadata"]["namespace"] = "scope"
    assert reference_problems(objects) == []
    find(objects, "ServiceAccount", "scope-worker")["metadata"]["namespace"] = "other"
    (found,) = reference_problems(objects)
    assert str(found).startswith(
        "ServiceAccount/scope-worker: is in the namespace other and finds nothing of scope"
    )


@pytest.mark.parametrize(
    ("labels", "port"),
    [
        ({"k8s-app": "kube-dns"}, 53),
        ({"k8s-app": "node-local-dns"}, 53),
        ({"dns.operator.openshift.io/daemonset-dns": "default"}, 5353),
    ],
    ids=["kube-dns", "a cache on the node", "OpenShift"],
)
def test_names_are_found_wherever_the_cluster_keeps_its_dns(
    objects: Objects, labels: dict[str, str], port: int
) -> None:
    (policy,) = [body for body in objects if body["metadata"]["name"] == "scope-dns"]
    for rule in policy["spec"]["egress"]:
        for peer in rule["to"]:
            peer.pop("namespaceSelector", None)
    pods = {pods.labels["app.kubernetes.io/component"]: pods for pods in pods_of(objects)}
    resolver = Pods("Pod/dns", labels, {"containers": []})
    for component in ("controller", "trainer", "worker"):
        assert allows([policy], "Egress", pods[component], resolver, port)
    blocks = [peer["ipBlock"]["cidr"] for peer in policy["spec"]["egress"][0]["to"] if "ipBlock" in peer]
    assert blocks == ["169.254.20.10/32", "169.254.169.254/32"]


@pytest.mark.parametrize("port", [443, 6443, 8443, 16443])
def test_the_controller_reaches_the_api_server_on_the_ports_of_the_usual_clusters(
    objects: Objects, port: int
) -> None:
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    (controller,) = [pods for pods in pods_of(objects) if pods.owner == "Job/tiny-controller"]
    assert allows(policies, "Egress", controller, Pods("Pod/api", {}, {"containers": []}), port)
