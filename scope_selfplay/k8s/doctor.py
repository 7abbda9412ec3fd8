"""`scope k8s doctor`: what this cluster can run for this user, and what is missing. Changes nothing."""

from collections.abc import Iterator

from scope_selfplay.controller.pods import Body
from scope_selfplay.doctor import Finding
from scope_selfplay.errors import ScopeError
from scope_selfplay.k8s.check_cluster import amount
from scope_selfplay.k8s.kubectl import Kubectl

_NEEDED = {
    "run": ("jobs.batch", "configmaps", "persistentvolumeclaims", "serviceaccounts"),
    "set up": (
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
        "networkpolicies.networking.k8s.io",
    ),
}
_GPU = "nvidia.com/gpu"


def examine(cluster: Kubectl) -> list[Finding]:
    """The cluster first: without it nothing else is asked."""
    try:
        version = cluster.version()
    except ScopeError as error:
        return [
            Finding(
                "cluster", False, str(error), "choose a context: `kubectl config use-context`, or KUBECONFIG"
            )
        ]
    return [
        Finding("cluster", True, f"Kubernetes {version}"),
        *_rights(cluster),
        _storage(cluster),
        _gpus(cluster),
        _quotas(cluster),
    ]


def _rights(cluster: Kubectl) -> Iterator[Finding]:
    for what, resources in _NEEDED.items():
        lacking = [each for each in resources if not cluster.may("create", each)]
        advice = f"ask for the right to create {', '.join(lacking)} in this namespace"
        yield Finding(
            f"rights to {what}",
            not lacking,
            "all there" if not lacking else f"lacking: {', '.join(lacking)}",
            advice,
        )


def _storage(cluster: Kubectl) -> Finding:
    try:
        names = [_storage_name(each) for each in cluster.objects("storageclasses")]
    except ScopeError as error:
        return Finding("storage", True, f"cannot be seen ({error})")
    advice = "make a PersistentVolume for the claim scope-data, or ask for a StorageClass with ReadWriteMany"
    return Finding("storage", bool(names), ", ".join(names) or "no StorageClass", advice)


def _storage_name(body: Body) -> str:
    usual = (body["metadata"].get("annotations") or {}).get(
        "storageclass.kubernetes.io/is-default-class"
    ) == "true"
    return f"{body['metadata']['name']}{' (default)' if usual else ''}"


def _gpus(cluster: Kubectl) -> Finding:
    advice = "not needed for k8s/runs/tiny; paper scale needs 6 GPUs and NVIDIA's device plugin"
    try:
        nodes = cluster.objects("nodes")
    except ScopeError as error:
        return Finding("GPUs", True, f"nodes cannot be seen ({error})")
    offered = {
        each["metadata"]["name"]: amount(each["status"].get("allocatable", {}).get(_GPU, 0)) for each in nodes
    }
    some = {name: count for name, count in offered.items() if count}
    found = ", ".join(f"{name} {count:.0f}" for name, count in some.items())
    return Finding("GPUs", bool(some), found or f"none on {len(nodes)} nodes", advice)


def _quotas(cluster: Kubectl) -> Finding:
    try:
        quotas = cluster.objects("resourcequotas")
    except ScopeError as error:
        return Finding("quotas", True, f"cannot be seen ({error})")
    hard = [
        f"{name}={value}"
        for each in quotas
        for name, value in ((each.get("status") or {}).get("hard") or {}).items()
    ]
    return Finding("quotas", True, ", ".join(hard) or "none in this namespace")
