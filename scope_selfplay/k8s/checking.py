"""Everything that can be said about a run's folder before it is applied, and about the cluster that it goes to."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import yaml

from scope_selfplay.config import RunConfig, parse_config
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check import is_installed, schema_problems, setting_problems
from scope_selfplay.k8s.check_cluster import (
    claim_problems,
    node_problems,
    one_node_problems,
    own_quota_problems,
    peak_gpus,
    quota_problems,
    seen,
    storage_problems,
)
from scope_selfplay.k8s.check_references import ManifestProblem, outside_problems, problems
from scope_selfplay.k8s.kubectl import Kubectl, kustomize
from scope_selfplay.k8s.objects import Body, planned_objects, pods_of
from scope_selfplay.k8s.patches import CLAIM


class FolderCheck(NamedTuple):
    """What a run's folder holds, what the run will add to it, and what is wrong; `notes` are no faults."""

    config: RunConfig
    objects: list[Body]
    problems: list[ManifestProblem]
    notes: list[str]


def check_folder(folder: Path) -> FolderCheck:
    """Render, schemas, references, config, prompt packs and images. Raises ConfigError when nothing renders.

    The config is the one that the controller will see: with what components set on its command line.
    """
    objects: list[Body] = list(kustomize(folder))
    config = config_of(objects, folder)
    packs = packs_of(objects)
    everything = [*objects, *planned_objects(config, packs)]
    # A claim of another name than the base's is somebody else's: only a cluster can tell whether it is there.
    claim = config.cluster.volume_claim
    elsewhere = [f"PersistentVolumeClaim/{claim}"] if claim != CLAIM else []
    found = [*problems(everything, elsewhere), *_packs(config, packs), *_images(config, objects)]
    found += [*one_node_problems(config, everything), *own_quota_problems(config, everything)]
    found += [*setting_problems(config), *outside_problems(config, everything)]
    notes = list(_notes(config))
    if is_installed():
        found += schema_problems(everything)
    else:
        notes.append("schemas not checked: pip install 'scope-selfplay[k8s]'")
    return FolderCheck(config, everything, found, notes)


class ClusterCheck(NamedTuple):
    """What a cluster said of a run; `notes` name what this user may not see there."""

    problems: list[ManifestProblem]
    notes: list[str]


def check_cluster(checked: FolderCheck, folder: Path, cluster: Kubectl) -> ClusterCheck:
    """What this cluster would refuse or never start. Raises OutsideError for one that does not answer."""
    config, objects = checked.config, checked.objects
    asked = ClusterCheck([ManifestProblem("cluster", line) for line in cluster.refusals(folder)], [])
    for what, look in (
        ("the volume", lambda: claim_problems(config, objects, cluster)),
        ("storage classes", lambda: storage_problems(objects, cluster)),
        ("nodes and their GPUs", lambda: node_problems(config, objects, cluster)),
        ("quotas", lambda: quota_problems(config, objects, cluster)),
    ):
        problems_there, notes = seen(what, look)
        asked.problems.extend(problems_there)
        asked.notes.extend(notes)
    return asked


def config_of(objects: Sequence[Body], folder: Path) -> RunConfig:
    """The run's config as its controller reads it: the one run.yaml of a ConfigMap, then `--set` of components."""
    texts = [body["data"]["run.yaml"] for body in objects if "run.yaml" in (body.get("data") or {})]
    if len(texts) != 1:
        raise ConfigError(
            f"{folder}: {len(texts)} ConfigMaps have a run.yaml, expected one; see `scope k8s render`"
        )
    return parse_config(
        yaml.safe_load(texts[0]), settings_of_components(objects), where=f"{folder}: run.yaml"
    )


def settings_of_components(objects: Sequence[Body]) -> list[str]:
    """`key=value`, as components give them to the controller on its command line."""
    return [
        value
        for pods in pods_of(objects)
        if pods.labels.get("app.kubernetes.io/component") == "controller"
        for container in pods.spec["containers"]
        for option, value in pairwise(container.get("args") or [])
        if option == "--set"
    ]


def packs_of(objects: Sequence[Body]) -> list[str]:
    names = [body["metadata"]["name"] for body in objects if body.get("kind") == "ConfigMap"]
    return sorted(name.removeprefix("prompts-") for name in names if name.startswith("prompts-"))


def _packs(config: RunConfig, packs: Sequence[str]) -> Iterator[ManifestProblem]:
    wanted = [config.domain, *([config.judge.prompts] if config.judge.kind == "model" else [])]
    for name in wanted:
        if name not in packs:
            yield ManifestProblem(
                f"ConfigMap/prompts-{name}",
                "is not there, and run.yaml names this pack; add ../prompts to the resources",
            )


def _images(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """The controller's image is set by kustomize, those of its Jobs by run.yaml."""
    for pods in pods_of(objects):
        for container in pods.containers:
            if pods.labels.get("app.kubernetes.io/component") == "controller" and (
                container["image"] != config.cluster.images.worker
            ):
                yield ManifestProblem(
                    pods.owner,
                    f"has image {container['image']}, its Jobs take cluster.images.worker "
                    f"{config.cluster.images.worker} of run.yaml; make them the same",
                )


def _notes(config: RunConfig) -> Iterator[str]:
    images = config.cluster.images
    loose = sorted(
        {
            each
            for each in (images.worker, images.trainer, images.server, images.retriever)
            if each and "@sha256:" not in each
        }
    )
    if loose:
        yield f"images without a digest may change under a run: {', '.join(loose)}"
    peaks = peak_gpus(config)
    if any(peaks.values()):
        yield "GPUs: " + ", ".join(f"{stage} {count}" for stage, count in peaks.items())
