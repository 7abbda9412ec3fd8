"""`scope k8s doctor`: what a cluster can run, what is missing, and the values of it that all runs share."""

from scope_selfplay.base.errors import Finding, ScopeError, State, passed
from scope_selfplay.cluster.check_cluster import (
    OF_ONE_NODE,
    is_default_class,
    is_kept_for,
    probe_finding,
    version_findings,
)
from scope_selfplay.cluster.folder import SHARED, shipped_kustomize, yaml_text
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.cluster.pods import CLAIM, Body
from scope_selfplay.config.cluster import amount

_GPU = "nvidia.com/gpu"
_NEEDED = ("jobs.batch", "configmaps", "pods")
_DNS, _DNS_PODS = "k8s-app", ("kube-dns", "node-local-dns")


def examine(cluster: Kubectl) -> list[Finding]:
    """Findings about the cluster; only its own one where it does not answer."""
    try:
        version = cluster.version()
    except ScopeError as error:
        advice = "choose a context: `kubectl config use-context`, or KUBECONFIG"
        return [Finding("cluster", str(error), State.STOP, advice, is_outside=True)]
    findings = [Finding("cluster", f"Kubernetes {version}", State.OK), *version_findings(version)]
    lacking = ", ".join(resource for resource in _NEEDED if not cluster.may("create", resource))
    # A Role may be made by those alone who have every right in it: a dry run tells.
    refused = "; ".join(cluster.refusals(shipped_kustomize() / SHARED))
    advice = "ask for the ClusterRole admin in this namespace, or let its administrator apply RUN/shared once"
    for what, fault in (("run", f"cannot create {lacking}" if lacking else ""), ("set up", refused)):
        state = State.STOP if fault else State.OK
        findings.append(Finding(f"rights to {what}", fault or "all there", state, advice))
    looks = {"storage": _storage, "GPUs": _gpus, "quotas": _quotas, "DNS": _names, "volume": _volume}
    for what, look in looks.items():
        try:
            findings.append(look(cluster))
        except ScopeError as error:
            findings.append(Finding(what, f"cannot be seen ({error})", State.OK))
    return findings


def _storage(cluster: Kubectl) -> Finding:
    """A volume that waits for the claim as the base has it is as good as a class."""
    found = [
        f"{body['metadata']['name']}{' (default)' if is_default_class(body) else ''}"
        for body in cluster.objects("storageclasses")
    ]
    volumes = cluster.seen("persistentvolumes")
    kept = [each for each in volumes if is_kept_for(each, CLAIM, cluster.namespace)]
    found += [f"the PersistentVolume {each['metadata']['name']} waits for {CLAIM}" for each in kept[:1]]
    advice = f"make a PersistentVolume for the claim {CLAIM}, or ask for a StorageClass with ReadWriteMany"
    return Finding("storage", ", ".join(found) or "no StorageClass", passed(found), advice)


def _gpus(cluster: Kubectl) -> Finding:
    nodes = cluster.objects("nodes")
    found = [
        f"{node['metadata']['name']} {count:.0f}{'' if resource == _GPU else f' {resource}'}"
        for node in nodes
        for resource, count in devices(node).items()
    ]
    advice = "not needed for k8s/runs/tiny; paper scale needs 6 GPUs and NVIDIA's device plugin"
    return Finding("GPUs", ", ".join(found) or f"none on {len(nodes)} nodes", passed(found), advice)


def devices(node: Body) -> dict[str, float]:
    """Whole GPUs and slices of them that pods may take on this node, by resource."""
    offered = node["status"].get("allocatable") or {}
    return {
        name: amount(offered[name])
        for name in offered
        if name.startswith("nvidia.com/") and amount(offered[name])
    }


def _quotas(cluster: Kubectl) -> Finding:
    quotas = [(quota.get("status") or {}).get("hard") or {} for quota in cluster.objects("resourcequotas")]
    hard = [f"{name}={value}" for quota in quotas for name, value in quota.items()]
    return Finding("quotas", ", ".join(hard) or "none in this namespace", State.OK)


def _names(cluster: Kubectl) -> Finding:
    """Whether the policies of k8s/shared let a run's pods ask for names: the DNS that they select has to be in pods."""
    pods = cluster.objects("pods", f"{_DNS} in ({', '.join(_DNS_PODS)})", everywhere=True)
    found = sorted({pod["metadata"]["labels"][_DNS] for pod in pods})
    advice = (
        "where NetworkPolicies are enforced add the component node-dns, except on OpenShift and with GKE's Cloud DNS; "
        "else no pod of a run finds its servers"
    )
    return Finding("DNS", ", ".join(found) or f"no pod of {' or '.join(_DNS_PODS)}", passed(found), advice)


def _volume(cluster: Kubectl) -> Finding:
    probed = probe_finding(cluster)
    return Finding(
        "volume", probed.what, passed(probed.state is not State.STOP), "take a volume that can do it"
    )


_PRODUCT = "nvidia.com/gpu.product"
_HEAD = """\
# The cluster of all runs below k8s/runs; a run's own settings come after these. Nobody can see from here:
#   images: {registry: HOST/PATH, worker: scope-selfplay:TAG@sha256:..., trainer: scope-trainer:TAG@sha256:...}
#   pod: {spec: {imagePullSecrets: [{name: SECRET}], priorityClassName: NAME}}
#   proxy: http://HOST:PORT
#   prepare: {hub: https://MIRROR, hub_secret: SECRET/KEY}
"""
_STORAGE = "#   claim: {storageClassName: CLASS}, or store: s3://BUCKET/PREFIX\n"
_POOL = "#   gpu_pod: {spec: {nodeSelector: {LABEL: VALUE}, tolerations: [{key: TAINT, operator: Exists}]}}\n"


def cluster_values(cluster: Kubectl) -> str:
    """`cluster.yaml` as far as this user sees the cluster: storage, GPUs with their nodes' taints, queue, runtime."""
    values: Body = {}
    classes = {body["metadata"]["name"]: body for body in cluster.seen("storageclasses")}
    several = [name for name, body in classes.items() if body.get("provisioner") not in OF_ONE_NODE]
    default = next((name for name, body in classes.items() if is_default_class(body)), None)
    if several and default not in several:
        values["claim"] = {"storageClassName": several[0]}
    elif classes and not several:
        values["claim"] = {"accessModes": ["ReadWriteOnce"], "storageClassName": default or min(classes)}
    offering = [node for node in cluster.seen("nodes") if devices(node)]
    spec: Body = {}
    if offering:
        resources = {name for node in offering for name in devices(node)}
        if _GPU not in resources:
            values["gpu_resource"] = min(resources)
        taints = [taint for node in offering for taint in (node.get("spec") or {}).get("taints") or []]
        keys = sorted({taint["key"] for taint in taints if taint.get("effect") != "PreferNoSchedule"})
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in keys]
        products = {(node["metadata"].get("labels") or {}).get(_PRODUCT) for node in offering}
        spec["nodeSelector"] = {_PRODUCT: product} if (product := products.pop()) and not products else {}
    if "nvidia" in [body["metadata"]["name"] for body in cluster.seen("runtimeclasses")]:
        spec["runtimeClassName"] = "nvidia"
    if spec := {name: value for name, value in spec.items() if value}:
        values["gpu_pod"] = {"spec": spec}
    if len(queues := cluster.seen("localqueues.kueue.x-k8s.io")) == 1:
        values["queue"] = queues[0]["metadata"]["name"]
    unseen = [line for line, seen in ((_STORAGE, classes), (_POOL, offering)) if not seen]
    return "".join((_HEAD, *unseen, yaml_text({"cluster": values})))
