"""The folder `viewer/` of a run: its web page as a Deployment and a Service, applied and deleted at any time. Pure."""

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import RUNS
from scope_selfplay.k8s.patches import (
    CONTAINER,
    IMAGE,
    TOP,
    Body,
    RunFolderLayout,
    add,
    image_parts,
    kustomization,
    merge_patches,
    patch,
    pod_changes,
    replace,
)
from scope_selfplay.k8s.shared import namespace_of

_NOTE = "# kubectl apply -k viewer; then kubectl port-forward service/RUN-viewer 8080:80, and http://127.0.0.1:8080\n"
_VIEWER = "viewer"
_RENAMED = {"options": {"allowNameChange": True}}
_ONE_NODE = {"spec": {"nodeSelector": {"scope/single-node": "true"}}}
"""As the component single-node has it for Jobs."""


def viewer_files(config: RunConfig, layout: RunFolderLayout) -> dict[str, str]:
    """The kustomization by its path in the run's folder."""
    name, cluster = f"{config.name}-{_VIEWER}", config.cluster
    renamed = replace("/metadata/name", name)
    run = {place: add(f"{place}/scope~1run", config.name) for place in _places()}
    arguments = [f"{RUNS}/{config.name}", "--host", "0.0.0.0", "--port", "8080", "--allow-host", name]
    deployment = [*run.values(), replace(f"{CONTAINER}/args", arguments), *pod_changes(cluster), renamed]
    service = [run["/metadata/labels"], add("/spec/selector/scope~1run", config.name), renamed]
    policy = [run["/metadata/labels"], add("/spec/podSelector/matchLabels/scope~1run", config.name), renamed]
    on_node = [_ONE_NODE] if "single-node" in layout.components else []
    parts: Body = {
        "namespace": namespace_of(layout),
        "resources": [f"../{TOP}/k8s/{_VIEWER}"],
        "images": [{"name": IMAGE, **image_parts(cluster.images.worker)}],
        "patches": [
            *merge_patches(cluster, _VIEWER, *on_node, kind="Deployment"),
            patch("Deployment", _VIEWER, deployment) | _RENAMED,
            patch("Service", _VIEWER, service) | _RENAMED,
            patch("NetworkPolicy", _VIEWER, policy) | _RENAMED,
        ],
    }
    return {f"{_VIEWER}/kustomization.yaml": _NOTE.replace("RUN", config.name) + kustomization(parts)}


def _places() -> tuple[str, ...]:
    return ("/metadata/labels", "/spec/selector/matchLabels", "/spec/template/metadata/labels")
