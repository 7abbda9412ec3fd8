"""What a cluster says of the volume of a run: whether its claim will be filled, and what probing it has shown."""

from collections.abc import Iterator, Sequence

from scope_selfplay.controller.manifests import COMPONENT
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, ManifestProblem, name_of
from scope_selfplay.k8s.quantities import amount

CLAIM_KIND = "PersistentVolumeClaim"
PROBE = f"{COMPONENT}=probe-volume"


def storage_problems(objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Claims that nothing would fill. Raises ConfigError where storage classes may not be seen."""
    classes = {body["metadata"]["name"]: body for body in cluster.objects("storageclasses")}
    known = ", ".join(classes) or "none"
    for claim in (body for body in objects if body.get("kind") == CLAIM_KIND):
        bound = cluster.get("persistentvolumeclaims", claim["metadata"]["name"])
        if bound is not None and (bound.get("status") or {}).get("phase") == "Bound":
            continue
        wanted = claim["spec"].get("storageClassName")
        if wanted and wanted not in classes:
            message = f"wants the StorageClass {wanted}; there are {known}"
        elif wanted is None and not any(map(is_default_class, classes.values())):
            message = (
                f"names no StorageClass and the cluster has no default one; there are {known}; "
                "name one (cluster.storage_class), or make a PersistentVolume for it"
            )
        else:
            continue
        if not has_volume(claim, cluster):
            yield ManifestProblem(name_of(claim), message)


def has_volume(claim: Body, cluster: Kubectl) -> bool:
    """Whether some PersistentVolume is bound to the claim, or will be: it needs no class then."""
    return any(_fits(volume, claim, cluster.namespace) for volume in _volumes(cluster))


def volume_for(claim: str, cluster: Kubectl) -> str | None:
    """The name of a PersistentVolume that is kept for the claim of this name."""
    kept = {"namespace": cluster.namespace, "name": claim}
    for volume in _volumes(cluster):
        if kept.items() <= (volume["spec"].get("claimRef") or {}).items():
            return str(volume["metadata"]["name"])
    return None


def _volumes(cluster: Kubectl) -> Sequence[Body]:
    try:
        return cluster.objects("persistentvolumes")
    except ConfigError:
        # They are the whole cluster's, and not everybody may see them.
        return ()


def _fits(volume: Body, claim: Body, namespace: str) -> bool:
    spec, wanted = volume["spec"], claim["spec"]
    kept = spec.get("claimRef")
    if kept is not None:
        name = (kept.get("namespace"), kept.get("name"))
        is_ours = name == (claim["metadata"].get("namespace", namespace), claim["metadata"]["name"])
    else:
        # A volume that is kept for a claim is bound to it whatever its class.
        classes = (spec.get("storageClassName") or "", wanted.get("storageClassName") or "")
        is_ours = classes[0] == classes[1] and (volume.get("status") or {}).get("phase") == "Available"
    enough = amount(spec["capacity"]["storage"]) >= amount(wanted["resources"]["requests"]["storage"])
    return is_ours and enough and {*wanted["accessModes"]} <= {*(spec.get("accessModes") or [])}


def is_default_class(storage_class: Body) -> bool:
    """Whether claims that name no StorageClass get this one."""
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


def probe_result(cluster: Kubectl) -> tuple[str, bool]:
    """What the newest pod of a Job `probe-volume` ended with, and whether it failed; nothing where none has ended.

    Raises as `Kubectl.objects`.
    """
    ended = [
        (state["finishedAt"], state.get("message", "").strip(), state.get("exitCode", 0) != 0)
        for pod in cluster.objects("pods", PROBE)
        for container in (pod.get("status") or {}).get("containerStatuses") or []
        if (state := (container.get("state") or {}).get("terminated")) and state.get("finishedAt")
    ]
    return max(ended)[1:] if ended else ("", False)


def probe_problems(line: str, *, failed: bool) -> Iterator[ManifestProblem]:
    """A volume of which the newest probe says that no run can work on it. Pure."""
    if failed:
        yield ManifestProblem("the volume", line or "was probed in vain; see the log of the Job probe-volume")


def probe_note(line: str) -> str:
    """What is known of the volume, in one line. Pure."""
    return line or "the volume was not probed yet: kubectl apply -k RUN/prepare/volume"
