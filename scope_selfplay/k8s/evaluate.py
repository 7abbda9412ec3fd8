"""The folder `evaluate/` of a run: a Job that lets its checkpoints answer benchmarks. Pure.

It runs `scope eval` on the volume, with the judge and the retriever of the run while it goes on; afterwards with those
that the config names (judge.evaluate, search.url).
"""

from scope_selfplay.config import RunConfig
from scope_selfplay.config.cluster import EvaluationJobConfig
from scope_selfplay.controller.manifests import KEY_VARIABLE, RUNS, RunStage, gpus_of, resources_of
from scope_selfplay.controller.servers import endpoint_settings, servers_of
from scope_selfplay.k8s.patches import (
    CONTAINER,
    IMAGE,
    POD,
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
from scope_selfplay.store import Stage

_NOTE = "# While the run goes on: kubectl apply -k evaluate. For other checkpoints delete the Job, render, and apply.\n"
_JOB = "evaluate"


def evaluate_files(config: RunConfig, layout: RunFolderLayout) -> dict[str, str]:
    """The kustomization by its path in the run's folder; none where no checkpoints are named."""
    settings = config.cluster.evaluate
    if settings is None:
        return {}
    cluster = config.cluster
    parts: Body = {
        "namespace": namespace_of(layout),
        "resources": [f"../{TOP}/k8s/evaluate"],
        "components": [layout.component(name, up=1) for name in layout.components if name == "single-node"],
        "images": [{"name": IMAGE, **image_parts(cluster.images.trainer or cluster.images.worker)}],
        "patches": [
            *merge_patches(cluster, _JOB, settings.pod),
            patch("Job", _JOB, _changes(config, settings)) | {"options": {"allowNameChange": True}},
        ],
    }
    return {"evaluate/kustomization.yaml": _NOTE + kustomization(parts)}


def evaluate_arguments(config: RunConfig, settings: EvaluationJobConfig) -> list[str]:
    """The command line of `scope eval`."""
    run = f"{RUNS}/{config.name}"
    first, *others = (f"{run}:{name}" for name in settings.checkpoints)
    arguments = [first, *(part for name in others for part in ("--against", name))]
    arguments += [part for name in settings.benchmarks for part in ("--benchmark", name)]
    # What serves the whole run: its judge and its retriever.
    servers = servers_of(config, RunStage(1, Stage.SOLVER), [True])
    for setting in endpoint_settings(config, servers):
        arguments += ["--set", setting]
    return [*arguments, "--root", f"{run}/benchmarks", *settings.options]


def _changes(config: RunConfig, settings: EvaluationJobConfig) -> list[Body]:
    cluster = config.cluster
    labels = [f"{place}/scope~1run" for place in ("/metadata/labels", "/spec/template/metadata/labels")]
    changes = [
        replace(f"{CONTAINER}/args", evaluate_arguments(config, settings)),
        replace(f"{CONTAINER}/resources", resources_of(cluster, settings)),
        replace("/spec/activeDeadlineSeconds", settings.deadline),
        replace(f"{POD}/terminationGracePeriodSeconds", settings.grace),
        *(add(label, config.name) for label in labels),
        *pod_changes(cluster, has_gpus=gpus_of(cluster, settings) > 0),
    ]
    if cluster.key_secret is not None:
        source = {"secretKeyRef": {"name": cluster.key_secret, "key": "token"}}
        changes.append(add(f"{CONTAINER}/env/-", {"name": KEY_VARIABLE, "valueFrom": source}))
    return [*changes, replace("/metadata/name", f"{config.name}-{_JOB}")]
