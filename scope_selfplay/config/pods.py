"""What every pod of a run may be given: names by the API server's rules, tolerations, volumes, patches, resources."""

import posixpath
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from scope_selfplay.config.base import ConfigSection

CPU = r"^[0-9]+(\.[0-9]+)?m?$"
OUR_MOUNTS = (
    *("/data", "/tmp", "/tmp/cache", "/dev/shm", "/etc/scope/run", "/etc/scope/prompts", "/etc/scope/hub"),
    "/var/run/secrets/kubernetes.io/serviceaccount",
)
"""Mount paths that pods of a run use themselves."""
_WRITABLE = ("/data", "/tmp", "/tmp/cache")
REPOSITORY = r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?$"
MEMORY = r"^[0-9]+(\.[0-9]+)?([kMGT]i?)?$"

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_WORD}(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]+)?/)?"
    rf"{_PATH}(/{_PATH})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)


def _name_rule(pattern: str, what: str, example: str, longest: int = 253) -> AfterValidator:
    """Validates a name by the API server's rule; unlike a pattern's error, the message describes a valid name."""

    def check(name: str) -> str:
        if len(name) > longest or not re.fullmatch(pattern, name):
            raise ValueError(f"found {name!r}, expected {what}, such as {example}")
        return name

    return AfterValidator(check)


_IMAGE_RULE = ("an image's name, with a tag or a digest of 64 digits", "registry.example/scope:1", 512)
Image = Annotated[str, _name_rule(_IMAGE, *_IMAGE_RULE)]
OptionalImage = Annotated[str, _name_rule(f"({_IMAGE})?", *_IMAGE_RULE)]
ObjectName = Annotated[
    str, _name_rule(_DOMAIN, "the name of an object: small letters, digits, - and .", "my-secret")
]
LabelKey = Annotated[
    str,
    _name_rule(
        rf"({_DOMAIN}/)?{_LABEL}",
        "a label's key of at most 63 letters, digits, -, _ and .",
        "team.example/pool",
        317,
    ),
]
OptionalLabelKey = Annotated[
    str, _name_rule(rf"(({_DOMAIN}/)?{_LABEL})?", "a taint's key, or none", "nvidia.com/gpu", 317)
]
LabelValue = Annotated[
    str, _name_rule(rf"({_LABEL})?", "a label's value of at most 63 letters, digits, -, _ and .", "a100")
]


class TolerationConfig(ConfigSection):
    key: OptionalLabelKey = ""
    """Key of the tolerated taint; every taint when empty."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """How the taint's value is compared."""
    value: str = ""
    """Value of the taint, for `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; every effect when empty."""


class VolumeConfig(ConfigSection):
    """An additional volume, such as a company's certificates or a cache of models on NFS."""

    name: str = Field(pattern=r"^extra(-[a-z0-9]+)+$", max_length=63)
    """Name of the volume: `extra-` and a word."""
    path: str = Field(pattern=r"^/")
    """Mount path; the mount is read-only."""
    source: dict[str, dict[str, Any]] = Field(min_length=1, max_length=1)
    """Volume source, as in a pod spec: `{configMap: {name: ca}}`, `{nfs: {server: ..., path: ...}}`."""

    @field_validator("path")
    @classmethod
    def _hides_nothing_of_ours(cls, path: str) -> str:
        """Of the pods' own mount paths, only the writable ones may have a volume below them, such as a model cache."""
        place = PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))
        for ours in map(PurePosixPath, OUR_MOUNTS):
            is_below = ours in place.parents and str(ours) not in _WRITABLE
            if place == ours or place in ours.parents or is_below:
                raise ValueError(
                    f"found {path!r}, which meets {ours}, where pods have their own; choose another place"
                )
        return path


def _check_pod_patch(patch: dict[str, Any]) -> dict[str, Any]:
    """What a patch may hold: metadata and spec of a pod, whose lists of containers, variables, volumes have names."""
    metadata, spec = patch.get("metadata") or {}, patch.get("spec") or {}
    wrong = sorted({*patch} - {"metadata", "spec"})
    wrong += [f"metadata.{key}" for key in sorted({*metadata} - {"labels", "annotations"})]
    if wrong:
        raise ValueError(
            f"found {wrong[0]}; a pod's patch has metadata (labels, annotations) and spec, as in a PodTemplate"
        )
    own = [key for key in metadata.get("labels") or {} if key.startswith(("scope/", "app.kubernetes.io/"))]
    if own:
        raise ValueError(f"found the label {own[0]}, by which the run finds its pods; use another key")
    for kind in ("containers", "initContainers"):
        if any("name" not in container for container in spec.get(kind) or []):
            raise ValueError(
                f"found one of spec.{kind} without a name; the run's own container is called main"
            )
    return patch


PodPatch = Annotated[dict[str, Any], AfterValidator(_check_pod_patch)]
"""A strategic-merge patch of a pod's template, as `kubectl patch` takes it."""


class PodConfig(ConfigSection):
    """Resources of one container. Requests and limits are equal, so that it is evicted last."""

    gpus: int = Field(default=0, ge=0)
    """GPUs."""
    cpu: str = Field(default="4", pattern=CPU)
    """CPU cores, as a Kubernetes quantity."""
    memory: str = Field(default="16Gi", pattern=MEMORY)
    """Memory, as a Kubernetes quantity."""
    pod: PodPatch = Field(default_factory=dict)
    """A strategic-merge patch of these pods, applied after `cluster.pod`: variables such as NCCL_*, annotations,
    affinity, a runtimeClassName, resources such as RDMA devices. The container is called `main`; null deletes."""

    @property
    def cores(self) -> float:
        return float(self.cpu[:-1]) / 1000 if self.cpu.endswith("m") else float(self.cpu)
