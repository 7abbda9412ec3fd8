"""What the runs of a namespace share, as a folder of its own: the claim, accounts, rights and policies. Pure.

A run's own folder holds none of it, so that deleting a run leaves the data and the others alone. Nothing here names a
run; what a run's config says of the claim is what the first run that is applied makes of it.
"""

from scope_selfplay.config import RunConfig
from scope_selfplay.k8s.patches import TOP, RunFolderLayout, claim_patches, kustomization

SHARED = "shared"
NAMESPACE = "scope"
"""As k8s/components/namespace has it. That component brings the namespace itself, which goes with all in it."""
_NOTE = "# Apply this first, once for all runs of a namespace. Deleting it deletes the claim: the data of all runs.\n"
_WHOLE = ("namespace", "quota", "node-dns", "external-servers", "tool-servers", "tracking", "monitoring")
"""Components that are no run's own: what they bring, the namespace has once."""
_PARTS = {"single-node": "single-node", "multi-node": "ranks"}
"""Components that change a run, and what of them belongs here."""


def shared_files(config: RunConfig, layout: RunFolderLayout) -> dict[str, str]:
    """The kustomization by its path in the run's folder."""
    names = [name for name in layout.components if name in _WHOLE]
    names += [_PARTS[name] for name in layout.components if name in _PARTS]
    parts = {
        "resources": [f"../{TOP}/k8s/shared"],
        "components": [layout.component(name, up=1) for name in names],
        "patches": claim_patches(config.cluster),
    }
    return {f"{SHARED}/kustomization.yaml": _NOTE + kustomization(parts)}


def own_components(layout: RunFolderLayout) -> list[str]:
    """Those that change the run itself."""
    return [name for name in layout.components if name not in _WHOLE]


def namespace_of(layout: RunFolderLayout) -> str | None:
    """The namespace that the run's objects name; None for the one of the user's context."""
    return NAMESPACE if "namespace" in layout.components else None


def all_components(own: list[str], shared: list[str]) -> list[str]:
    """A run's components, from what its two kustomizations list."""
    return [*own, *(name for name in shared if name not in own and name not in _PARTS.values())]
