"""Everything that can be said about a run's folder before it is applied, and about the cluster that it goes to."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import yaml

from scope_selfplay.config import RunConfig, parse_config
from scope_selfplay.controller.names import Part
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.capacity import gpu_problems, peak_gpus, quota_problems, seen, storage_problems
from scope_selfplay.k8s.kubectl import Cluster, kustomize
from scope_selfplay.k8s.outside import outside_problems
from scope_selfplay.k8s.planned import planned_objects
from scope_selfplay.k8s.references import Problem, problems
from scope_selfplay.k8s.schema import is_installed, schema_problems
from scope_selfplay.k8s.selectors import Body, pods_of


class Checked(NamedTuple):
    """What a run's folder holds, what the run will add to it, and what is wrong; `notes` are no faults."""

    config: RunConfig
    objects: list[Body]
    problems: list[Problem]
    notes: list[str]


def check_folder(folder: Path) -> Checked:
    """Render, schemas, references, config, prompt packs and images. Raises ConfigError when nothing renders.

    The config is the one that the controller will see: with what components set on its command line.
    """
    objects: list[Body] = list(kustomize(folder))
    config = config_of(objects, folder)
    packs = packs_of(objects)
    everything = [*objects, *planned_objects(config, packs)]
    found = [*problems(everything), *_packs(config, packs), *_images(config, objects)]
    found += _one_node(everything)
    found += [*_gpu_images(config), *_ranks(config), *outside_problems(config, everything)]
    notes = list(_notes(config))
    if is_installed():
        found += schema_problems(everything)
    else:
        notes.append("schemas not checked: pip install 'scope-selfplay[k8s]'")
    return Checked(config, everything, found, notes)


class Asked(NamedTuple):
    """What a cluster said of a run; `notes` name what this user may not see there."""

    problems: list[Problem]
    notes: list[str]


def check_cluster(checked: Checked, folder: Path, cluster: Cluster) -> Asked:
    """What this cluster would refuse or never start. Raises OutsideError for one that does not answer."""
    config, objects = checked.config, checked.objects
    asked = Asked([Problem("cluster", line) for line in cluster.refusals(folder)], [])
    for what, look in (
        ("storage classes", lambda: storage_problems(objects, cluster)),
        ("GPUs of the nodes", lambda: gpu_problems(config, objects, cluster)),
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


def _packs(config: RunConfig, packs: Sequence[str]) -> Iterator[Problem]:
    wanted = [config.domain, *([config.judge.prompts] if config.judge.kind == "model" else [])]
    for name in wanted:
        if name not in packs:
            yield Problem(
                f"ConfigMap/prompts-{name}",
                "is not there, and run.yaml names this pack; add ../prompts to the resources",
            )


def _images(config: RunConfig, objects: Sequence[Body]) -> Iterator[Problem]:
    """The controller's image is set by kustomize, those of its Jobs by run.yaml."""
    for pods in pods_of(objects):
        for container in pods.containers:
            if pods.labels.get("app.kubernetes.io/component") == "controller" and (
                container["image"] != config.cluster.images.worker
            ):
                yield Problem(
                    pods.owner,
                    f"has image {container['image']}, its Jobs take cluster.images.worker "
                    f"{config.cluster.images.worker} of run.yaml; make them the same",
                )


def _gpu_images(config: RunConfig) -> Iterator[Problem]:
    """What runs on a GPU has CUDA in its image, and the worker's has none."""
    from scope_selfplay.controller.pods import gpus_of, is_vllm
    from scope_selfplay.controller.servers import settings_of

    cluster = config.cluster
    trained = [
        name for name in ("train_challenger", "train_solver") if gpus_of(cluster, getattr(cluster, name))
    ]
    served = [
        part.value
        for part in (Part.JUDGE, Part.SOLVER, Part.CHALLENGER)
        if settings_of(config, part).serve and is_vllm(config, part)
    ]
    for name, image, users in (
        ("trainer", cluster.images.trainer, trained),
        ("server", cluster.images.server, served),
    ):
        if users and not image:
            yield Problem(
                f"cluster.images.{name}",
                f"is not named, so {', '.join(users)} would get GPUs and the image of the workers, which has no CUDA; "
                "name one built from k8s/images/trainer.Dockerfile",
            )


def _one_node(objects: Sequence[Body]) -> Iterator[Problem]:
    """A volume that one node mounts keeps a pod on another node waiting for ever (Multi-Attach)."""
    single = {
        body["metadata"]["name"]
        for body in objects
        if body.get("kind") == "PersistentVolumeClaim" and body["spec"]["accessModes"] == ["ReadWriteOnce"]
    }
    for pods in pods_of(objects):
        claims = {
            (volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in pods.spec["volumes"]
        }
        for claim in sorted(single & claims):
            if not pods.spec.get("nodeSelector"):
                yield Problem(
                    pods.owner,
                    f"mounts {claim}, which is ReadWriteOnce, and nothing keeps it on the volume's node; "
                    "set cluster.node_selector, or add the component single-node",
                )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    """Each GPU has a process of its own, and each process whole groups."""
    from scope_selfplay.controller.pods import gpus_of
    from scope_selfplay.training.ranks import share_of

    cluster = config.cluster
    for name, settings, pod in (
        ("train_challenger", config.challenger, cluster.train_challenger),
        ("train_solver", config.solver, cluster.train_solver),
    ):
        try:
            share_of(settings, max(1, gpus_of(cluster, pod)) * pod.nodes)
        except ConfigError as error:
            yield Problem(f"cluster.{name}", f"has {pod.gpus} GPUs on each of {pod.nodes} nodes: {error}")


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
