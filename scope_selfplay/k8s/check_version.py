"""Whether a server knows every field of a run's objects: an older one drops such a field, or refuses the object."""

import re
from collections.abc import Iterator, Sequence

from scope_selfplay.k8s.objects import Body, ManifestProblem, name_of

OLDEST = "1.30"
"""Kubernetes release from which on runs are checked."""
_SINCE = {
    "podFailurePolicy": ("1.26", "add the component older-kubernetes"),
    "completionMode": ("1.24", "train on one node, without cluster.gang"),
}
"""Field of a Job's spec -> the release from which on servers know it, and what to do before."""


def version_problems(objects: Sequence[Body], version: str) -> Iterator[ManifestProblem]:
    """Fields that a server of this version (`v1.29.3`) is too old for. Pure."""
    for body in objects:
        for field, (since, advice) in _SINCE.items():
            if body.get("kind") == "Job" and field in body["spec"] and is_older(version, since):
                yield ManifestProblem(
                    name_of(body),
                    f"has spec.{field}, which servers know from Kubernetes {since} on, and this one is {version}; "
                    f"{advice}",
                )


def version_notes(version: str) -> list[str]:
    """A warning of a server that runs are not checked with; nothing of a newer one."""
    return [f"the cluster is {version}; runs are checked from {OLDEST} on"] if is_older(version) else []


def is_older(version: str, oldest: str = OLDEST) -> bool:
    """Whether a server's `v1.29.3` is below a release; one that says nothing readable is not."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and tuple(map(int, found.groups())) < tuple(map(int, oldest.split(".")))
