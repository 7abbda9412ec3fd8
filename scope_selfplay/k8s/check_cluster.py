"""Whether a run fits its cluster: quotas, the volume's claim; what fills it: `check_volume`; nodes: `check_nodes`.

What this user may not look at is a note, not a fault: rights in one namespace are enough to run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_volume import CLAIM_KIND
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, ManifestProblem, name_of, pods_of, stage_objects
from scope_selfplay.k8s.quantities import Amounts, amount, count_pods, readable

_COUNTED = {
    "Job": ("jobs", "count/jobs.batch"),
    "Deployment": ("deployments", "count/deployments.apps"),
    "Service": ("services", "services", "count/services"),
}
"""Kind -> its plural, and the resources of a quota that count it."""


def peak_gpus(config: RunConfig) -> dict[str, int]:
    """GPUs of each stage, its servers included."""
    gpus = f"requests.{config.cluster.gpu_resource}"
    return {stage: int(usage_of(bodies)[gpus]) for stage, bodies in stage_objects(config).items()}


def quota_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Quotas that some stage does not fit into, given what others use. Raises ConfigError where none may be seen."""
    quotas = [quota for quota in cluster.objects("resourcequotas") if not _is_scoped(quota)]
    if not quotas:
        return
    needs = _stage_usage(config, objects)
    # What this run takes already must not count as the use of others.
    ours = _present_usage(config, cluster)
    for quota in quotas:
        status = quota.get("status") or {}
        for resource, limit in (status.get("hard") or {}).items():
            used = amount((status.get("used") or {}).get(resource, 0))
            others = max(0.0, used - ours[resource])
            yield from _over_quota(quota, resource, limit, needs, others)


def own_quota_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Quotas that the run brings itself, in a namespace without other users. Pure."""
    quotas = [body for body in objects if body.get("kind") == "ResourceQuota" and not _is_scoped(body)]
    needs = _stage_usage(config, objects) if quotas else {}
    for quota in quotas:
        for resource, limit in (quota["spec"].get("hard") or {}).items():
            yield from _over_quota(quota, resource, limit, needs, 0.0)


def _is_scoped(quota: Body) -> bool:
    """Whether it counts only some pods, such as those of a priority: the cluster decides which ones."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def _over_quota(
    quota: Body, resource: str, limit: Any, needs: Mapping[str, Amounts], others: float
) -> Iterator[ManifestProblem]:
    stage = max(needs, key=lambda name: needs[name][resource])
    wanted = needs[stage][resource]
    if wanted > amount(limit) - others:
        yield ManifestProblem(
            name_of(quota),
            f"allows {limit} {resource}, others use {readable(others)}, the stage {stage} takes {readable(wanted)}",
        )


def _stage_usage(config: RunConfig, objects: Sequence[Body]) -> Mapping[str, Amounts]:
    """By stage, what is alive at once; the controller is among `objects`."""
    controller = [body for body in objects if name_of(body) == f"Job/{config.name}-controller"]
    return {stage: usage_of([*controller, *bodies]) for stage, bodies in stage_objects(config).items()}


def _present_usage(config: RunConfig, cluster: Kubectl) -> Amounts:
    """What the run takes of the quotas now."""
    own = f"scope/run={config.name}"
    found = Amounts(float)
    for pod in cluster.objects("pods", own):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            count_pods(found, pod["spec"], 1)
    for plural, *resources in _COUNTED.values():
        found.update(dict.fromkeys(resources, len(cluster.objects(plural, own))))
    return found


def usage_of(objects: Sequence[Body]) -> Amounts:
    """What these Jobs, Deployments and Services take of a quota while all of them run."""
    found = Amounts(float)
    for body in objects:
        for resource in _COUNTED.get(str(body["kind"]), ("",))[1:]:
            found[resource] += 1
        for pods in pods_of([body]):
            spec = body["spec"]
            count_pods(found, pods.spec, int(spec.get("parallelism", spec.get("replicas", 1))))
    return found


def one_node_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """A volume that one node mounts keeps a pod on another node waiting for ever (Multi-Attach). Pure."""
    cluster = config.cluster
    single = claims_of_one_node(config, objects)
    for pods in pods_of(objects):
        claims = {
            (volume.get("persistentVolumeClaim") or {}).get("claimName")
            for volume in pods.spec.get("volumes") or []
        }
        selector = dict(pods.spec.get("nodeSelector") or {})
        for claim in sorted(single & claims):
            if not selector:
                yield ManifestProblem(
                    pods.owner,
                    f"mounts {claim}, which is ReadWriteOnce, and nothing keeps it on the volume's node; "
                    "set cluster.node_selector, or add the component single-node",
                )
            elif selector != cluster.node_selector:
                yield ManifestProblem(
                    pods.owner,
                    f"mounts {claim}, which is ReadWriteOnce, on a node with {pairs(selector)}, and the run's other "
                    f"pods go to one with {pairs(cluster.node_selector) or 'any labels'}; make them the same",
                )


def claim_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """A claim that the run does not bring itself must exist. Raises ConfigError where claims may not be seen."""
    name, mode = config.cluster.volume_claim, config.cluster.access_mode
    if f"{CLAIM_KIND}/{name}" in map(name_of, objects):
        return
    claim = cluster.get("persistentvolumeclaims", name)
    if claim is None:
        message = "does not exist; create it, or leave cluster.volume_claim out"
        yield ManifestProblem(f"{CLAIM_KIND}/{name}", message)
        return
    modes = claim["spec"].get("accessModes") or []
    if not {mode, "ReadWriteMany"} & set(modes):
        yield ManifestProblem(
            f"{CLAIM_KIND}/{name}",
            f"is {', '.join(modes)}, and the run wants {mode}; make another claim, or set cluster.access_mode and "
            "cluster.node_selector",
        )


def queue_problems(config: RunConfig, cluster: Kubectl) -> Iterator[ManifestProblem]:
    """A gang needs JobSet, Kueue and its queue. Raises ConfigError where they may not be seen."""
    if config.cluster.gang is None:
        return
    name = config.cluster.gang.queue
    try:
        cluster.objects("jobsets.jobset.x-k8s.io")
        queue = cluster.get("localqueues.kueue.x-k8s.io", name)
    except ConfigError as error:
        if "resource type" not in str(error):
            raise
        message = f"needs JobSet and Kueue, and {error}; install them, or leave cluster.gang out"
        yield ManifestProblem("cluster.gang", message)
        return
    if queue is None:
        message = f"names {name}, and the namespace has no such LocalQueue; create it, or name another one"
        yield ManifestProblem("cluster.gang.queue", message)


def claims_of_one_node(config: RunConfig, objects: Sequence[Body]) -> set[str]:
    """Claims that are ReadWriteOnce by the config, or by what a person wrote into the claim itself."""
    cluster = config.cluster
    configured = {cluster.volume_claim} if cluster.access_mode == "ReadWriteOnce" else set()
    return configured | {
        body["metadata"]["name"]
        for body in objects
        if body.get("kind") == CLAIM_KIND and body["spec"]["accessModes"] == ["ReadWriteOnce"]
    }


def pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
