"""Where a run's volume and its pods can be: its claim, storage classes, nodes and their GPUs."""

from collections.abc import Iterator, Sequence

from scope_selfplay.config import RunConfig
from scope_selfplay.k8s.check_cluster import amount, peak_gpus
from scope_selfplay.k8s.check_references import ManifestProblem
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, matches, name_of, pods_of

_CLAIM = "PersistentVolumeClaim"


def one_node_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """A volume that one node mounts keeps a pod on another node waiting for ever (Multi-Attach). Pure."""
    cluster = config.cluster
    single = _claims_of_one_node(config, objects)
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
                    f"mounts {claim}, which is ReadWriteOnce, on a node with {_shown(selector)}, and the run's other "
                    f"pods go to one with {_shown(cluster.node_selector) or 'any labels'}; make them the same",
                )


def claim_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """A claim that the run does not bring itself must be there. Raises ConfigError where claims may not be seen."""
    name, mode = config.cluster.volume_claim, config.cluster.access_mode
    if f"{_CLAIM}/{name}" in map(name_of, objects):
        return
    claim = cluster.get("persistentvolumeclaims", name)
    if claim is None:
        yield ManifestProblem(f"{_CLAIM}/{name}", "is not there; make it, or leave cluster.volume_claim out")
        return
    modes = claim["spec"].get("accessModes") or []
    if not {mode, "ReadWriteMany"} & set(modes):
        yield ManifestProblem(
            f"{_CLAIM}/{name}",
            f"is {', '.join(modes)}, and the run wants {mode}; make another claim, or set cluster.access_mode and "
            "cluster.node_selector",
        )


def storage_problems(objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Claims that nothing would fill. Raises ConfigError where storage classes may not be seen."""
    classes = {each["metadata"]["name"]: each for each in cluster.objects("storageclasses")}
    usual = "storageclass.kubernetes.io/is-default-class"
    has_usual = any(
        (each["metadata"].get("annotations") or {}).get(usual) == "true" for each in classes.values()
    )
    for claim in (body for body in objects if body.get("kind") == _CLAIM):
        bound = cluster.get("persistentvolumeclaims", claim["metadata"]["name"])
        if bound is not None and (bound.get("status") or {}).get("phase") == "Bound":
            continue
        named = claim["spec"].get("storageClassName")
        if named and named not in classes:
            yield ManifestProblem(
                name_of(claim), f"wants the StorageClass {named}; there are {', '.join(classes) or 'none'}"
            )
        elif named is None and not has_usual:
            yield ManifestProblem(
                name_of(claim),
                f"names no StorageClass and the cluster has no default one; there are {', '.join(classes) or 'none'}; "
                "name one, or make a PersistentVolume for it",
            )


def node_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Nodes that the run may go to, and their GPUs. Raises ConfigError where nodes may not be seen."""
    selector = config.cluster.node_selector
    wanted = max(peak_gpus(config).values())
    if not selector and not wanted:
        return
    nodes = [
        each
        for each in cluster.objects("nodes")
        if matches({"matchLabels": selector}, each["metadata"].get("labels") or {})
    ]
    is_one = bool(_claims_of_one_node(config, objects))
    if not nodes:
        yield ManifestProblem(
            "nodes", f"none has {_shown(selector) or 'come up'}; label one, or change cluster.node_selector"
        )
    else:
        if selector and is_one and len(nodes) > 1:
            yield ManifestProblem(
                "nodes",
                f"{len(nodes)} have {_shown(selector)}, and the volume is ReadWriteOnce; keep the labels on one",
            )
        yield from _gpu_problems(config, objects, nodes)


def _gpu_problems(
    config: RunConfig, objects: Sequence[Body], nodes: Sequence[Body]
) -> Iterator[ManifestProblem]:
    resource, is_one = config.cluster.gpu_resource, bool(_claims_of_one_node(config, objects))
    wanted = max(peak_gpus(config).values())
    offered = [amount(each["status"].get("allocatable", {}).get(resource, 0)) for each in nodes]
    most = max(offered)
    there = most if is_one else sum(offered)
    if there < wanted:
        where = "all on the one node of the volume" if is_one else "at once"
        yield ManifestProblem(
            "nodes", f"offer {there:.0f} {resource}, the largest stage takes {wanted} {where}"
        )
    for pods in pods_of(objects):
        taken = sum(
            amount((each.get("resources") or {}).get("limits", {}).get(resource, 0))
            for each in pods.containers
        )
        if taken > most:
            yield ManifestProblem(
                pods.owner, f"takes {taken:.0f} {resource} on one node, the largest offers {most:.0f}"
            )


def _claims_of_one_node(config: RunConfig, objects: Sequence[Body]) -> set[str]:
    """By what the config says, and by what a person wrote into the claim itself."""
    cluster = config.cluster
    said = {cluster.volume_claim} if cluster.access_mode == "ReadWriteOnce" else set()
    return said | {
        body["metadata"]["name"]
        for body in objects
        if body.get("kind") == _CLAIM and body["spec"]["accessModes"] == ["ReadWriteOnce"]
    }


def _shown(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
