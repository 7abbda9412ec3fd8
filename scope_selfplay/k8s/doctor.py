"""`scope k8s doctor`: what this cluster can run for this user, and what is missing. Changes nothing."""

from collections.abc import Sequence
from functools import partial

from scope_selfplay.doctor import Finding
from scope_selfplay.errors import ScopeError
from scope_selfplay.k8s.check_nodes import gpus_offered
from scope_selfplay.k8s.check_version import OLDEST, is_older
from scope_selfplay.k8s.check_volume import is_default_class, probe_note, probe_result, volume_for
from scope_selfplay.k8s.kubectl import Body, Kubectl
from scope_selfplay.k8s.patches import CLAIM

_NEEDED = {
    "run": ("jobs.batch", "configmaps", "persistentvolumeclaims", "serviceaccounts"),
    "set up": (
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
        "networkpolicies.networking.k8s.io",
    ),
}
_DNS, _DNS_PODS = "k8s-app", ("kube-dns", "node-local-dns")


def examine(cluster: Kubectl) -> list[Finding]:
    """Findings about the cluster; only its own one where it does not answer."""
    try:
        version = cluster.version()
    except ScopeError as error:
        advice = "choose a context: `kubectl config use-context`, or KUBECONFIG"
        return [Finding("cluster", False, str(error), advice)]
    findings = [Finding("cluster", True, f"Kubernetes {version}")]
    if is_older(version):
        advice = (
            f"runs are checked from {OLDEST} on; on one before 1.26 add the component older-kubernetes, and leave out "
            "kueue and several nodes"
        )
        findings.append(Finding("version", False, f"{version} is older than {OLDEST}", advice))
    for what, resources in _NEEDED.items():
        lacking = ", ".join(resource for resource in resources if not cluster.may("create", resource))
        found = f"lacking: {lacking}" if lacking else "all there"
        advice = f"ask for the right to create {lacking} in this namespace"
        findings.append(Finding(f"rights to {what}", not lacking, found, advice))
    for what, kind, finding_of, subject in (
        ("storage", "storageclasses", partial(_storage, cluster), ""),
        ("GPUs", "nodes", _gpus, "nodes "),
        ("quotas", "resourcequotas", _quotas, ""),
    ):
        try:
            findings.append(finding_of(cluster.objects(kind)))
        except ScopeError as error:
            findings.append(Finding(what, True, f"{subject}cannot be seen ({error})"))
    return [*findings, _names(cluster), _volume(cluster)]


def _names(cluster: Kubectl) -> Finding:
    """Whether the policies of k8s/shared let a run's pods ask for names: the DNS that they select has to be in pods."""
    try:
        pods = cluster.objects("pods", f"{_DNS} in ({', '.join(_DNS_PODS)})", everywhere=True)
    except ScopeError as error:
        return Finding("DNS", True, f"cannot be seen ({error})")
    found = sorted({pod["metadata"]["labels"][_DNS] for pod in pods})
    advice = (
        "where NetworkPolicies are enforced add the component node-dns, except on OpenShift and with GKE's Cloud DNS; "
        "else no pod of a run finds its servers"
    )
    return Finding("DNS", bool(found), ", ".join(found) or f"no pod of {' or '.join(_DNS_PODS)}", advice)


def _volume(cluster: Kubectl) -> Finding:
    try:
        line, failed = probe_result(cluster)
        return Finding("volume", not failed, probe_note(line), "take a volume that can do it")
    except ScopeError as error:
        return Finding("volume", True, f"its probe cannot be seen ({error})")


def _storage(cluster: Kubectl, classes: Sequence[Body]) -> Finding:
    """A volume that waits for the claim as the base has it is as good as a class."""
    names = [
        f"{body['metadata']['name']}{' (default)' if is_default_class(body) else ''}" for body in classes
    ]
    advice = f"make a PersistentVolume for the claim {CLAIM}, or ask for a StorageClass with ReadWriteMany"
    waits = volume_for(CLAIM, cluster)
    found = [*names, *([f"the PersistentVolume {waits} waits for {CLAIM}"] if waits else [])]
    return Finding("storage", bool(found), ", ".join(found) or "no StorageClass", advice)


def _gpus(nodes: Sequence[Body]) -> Finding:
    advice = "not needed for k8s/runs/tiny; paper scale needs 6 GPUs and NVIDIA's device plugin"
    offered = {node["metadata"]["name"]: gpus_offered(node, "nvidia.com/gpu") for node in nodes}
    found = ", ".join(f"{name} {count:.0f}" for name, count in offered.items() if count)
    return Finding("GPUs", bool(found), found or f"none on {len(nodes)} nodes", advice)


def _quotas(quotas: Sequence[Body]) -> Finding:
    hard = [
        f"{name}={value}"
        for quota in quotas
        for name, value in ((quota.get("status") or {}).get("hard") or {}).items()
    ]
    return Finding("quotas", True, ", ".join(hard) or "none in this namespace")
