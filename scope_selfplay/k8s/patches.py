"""Parts of kustomizations: patches, image names, and YAML that every reader reads alike. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from scope_selfplay.config.cluster import ClusterConfig
from scope_selfplay.config.pods import PodPatch
from scope_selfplay.controller.manifests import tolerations_of

API = "kustomize.config.k8s.io"
IMAGE = "scope-selfplay"
CLAIM = "scope-data"
USER = 10_001
POD = "/spec/template/spec"
CONTAINER = f"{POD}/containers/0"
TOP = "../../.."
"""The folder that holds k8s/ and prompts/, seen from a run's folder."""
Body = dict[str, Any]


@dataclass(frozen=True)
class RunFolderLayout:
    """Which packs and components a run's folder refers to."""

    packs: Sequence[str] = ()
    """Prompt packs below prompts/: the run's own and all that they extend."""
    components: Sequence[str] = ()
    """Components below k8s/components/; one with a slash in it is a path from setup/ and stays as it is."""

    def component(self, name: str, *, up: int) -> str:
        """The component's path, from a folder `up` levels below the run's."""
        return name if "/" in name else f"{'../' * up}{TOP}/k8s/components/{name}"


def kustomization(parts: Body) -> str:
    """A kustomization's text, without what is empty."""
    head = {"apiVersion": f"{API}/v1beta1", "kind": "Kustomization"}
    return yaml_text({**head, **{name: value for name, value in parts.items() if value}})


def image_parts(image: str) -> dict[str, str]:
    """An image's name as kustomize takes it apart: name, tag and digest."""
    name, _, digest = image.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    parts = {"newName": head + slash + last, "newTag": tag, "digest": digest}
    return {key: value for key, value in parts.items() if value}


def pod_changes(cluster: ClusterConfig, *, has_gpus: bool = False) -> list[Body]:
    """Where a pod runs and what it mounts, for a Job of the base whose first volume is the run's."""
    changes: list[Body] = []
    for volume in cluster.volumes:
        mount = {"name": volume.name, "mountPath": volume.path, "readOnly": True}
        changes.append(add(f"{POD}/volumes/-", {"name": volume.name, **volume.source}))
        changes.append(add(f"{CONTAINER}/volumeMounts/-", mount))
    if cluster.volume_claim != CLAIM:
        changes.append(replace(f"{POD}/volumes/0/persistentVolumeClaim/claimName", cluster.volume_claim))
    if cluster.user != USER:
        changes += [
            replace(f"{POD}/securityContext/{name}", cluster.user)
            for name in ("runAsUser", "runAsGroup", "fsGroup")
        ]
    if tolerations := tolerations_of(cluster, has_gpus=has_gpus):
        changes.append(add(f"{POD}/tolerations", tolerations))
    if cluster.priority_class:
        changes.append(add(f"{POD}/priorityClassName", cluster.priority_class))
    if cluster.pull_secret:
        changes.append(add(f"{POD}/imagePullSecrets", [{"name": cluster.pull_secret}]))
    return changes


def merge_patches(cluster: ClusterConfig, name: str, *patches: PodPatch, kind: str = "Job") -> list[Body]:
    """Merged key by key: the run's nodes, since a component may have added a label of its own; then patches of pods."""
    nodes = {"spec": {"nodeSelector": dict(cluster.node_selector)}} if cluster.node_selector else {}
    api = "batch/v1" if kind == "Job" else "apps/v1"
    head = {"apiVersion": api, "kind": kind, "metadata": {"name": name}}
    return [
        {
            "target": {"kind": kind, "name": name},
            "patch": yaml_text({**head, "spec": {"template": template}}),
        }
        for template in (nodes, cluster.pod, *patches)
        if template
    ]


def claim_patches(cluster: ClusterConfig) -> list[Body]:
    """The base's claim as the run wants it: deleted where the run has one that exists already."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}}
    if cluster.volume_claim != CLAIM:
        return [{"patch": yaml_text({**claim, "$patch": "delete"})}]
    changes: list[Body] = []
    if cluster.access_mode != "ReadWriteMany":
        changes.append(replace("/spec/accessModes", [cluster.access_mode]))
    if cluster.storage_class:
        changes.append(add("/spec/storageClassName", cluster.storage_class))
    if cluster.storage != "1Ti":
        changes.append(replace("/spec/resources/requests/storage", cluster.storage))
    return [patch("PersistentVolumeClaim", CLAIM, changes)] if changes else []


def patch(kind: str, name: str, changes: Sequence[Body]) -> Body:
    return {"target": {"kind": kind, "name": name}, "patch": yaml_text(list(changes))}


def replace(path: str, value: Any) -> Body:
    return {"op": "replace", "path": path, "value": value}


def add(path: str, value: Any) -> Body:
    return {"op": "add", "path": path, "value": value}


def yaml_text(body: Any) -> str:
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable; every text that YAML could read as something else is quoted."""


# What some reader of YAML takes for a number or a truth value, and PyYAML does not: 1e3, 0o17, 12_000, y.
_DOUBTFUL = re.compile(r"[-+.]?[0-9].*|y|n|Y|N|~|=|\.inf|\.nan", re.IGNORECASE)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _DOUBTFUL.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
