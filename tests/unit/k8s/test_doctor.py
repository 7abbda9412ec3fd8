"""`scope k8s doctor` before a `kubectl` that answers from files, and refuses what is not there."""

from scope_selfplay.base.errors import State
from scope_selfplay.cluster.commands import examine
from scope_selfplay.cluster.kubectl import Kubectl
from tests.unit.k8s.conftest import Answers


def test_rights_in_one_namespace_are_enough_for_a_doctor(answers: Answers) -> None:
    answers.give("resourcequotas")
    assert all(finding.state is State.OK for finding in examine(Kubectl()))


def test_an_older_cluster_is_told_what_to_do(answers: Answers) -> None:
    answers.run_version("v1.25.4")
    (found,) = [each for each in examine(Kubectl()) if each.where == "version"]
    assert found.state is State.WARNING and "older-kubernetes" in found.advice


def test_a_cluster_whose_dns_is_no_pod_is_told_what_to_add(answers: Answers) -> None:
    answers.give("everywhere")
    (found,) = [each for each in examine(Kubectl()) if each.where == "DNS"]
    assert found.state is State.WARNING and "component node-dns" in found.advice
    pods = [
        {"metadata": {"labels": {"k8s-app": name}}} for name in ("kube-dns", "kube-dns", "node-local-dns")
    ]
    answers.give("everywhere", *pods)
    (found,) = [each for each in examine(Kubectl()) if each.where == "DNS"]
    assert found.state is State.OK and found.what == "kube-dns, node-local-dns"


def test_a_doctor_that_may_see_no_quota_says_so(answers: Answers) -> None:
    (quotas,) = [each for each in examine(Kubectl()) if each.where == "quotas"]
    assert quotas.state is State.OK and "cannot be seen" in quotas.what
