"""`scope k8s check`: everything wrong with a run's folder before it is applied, alone or on its cluster.

References and policies are in `check_references`, images in `check_images`, quotas and nodes in `check_cluster`; here
are the config's own settings and the schemas of Kubernetes releases, which the package `kubernetes-validate` brings
along.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.config import RunConfig, parse_config, parse_settings
from scope_selfplay.config.training import check_engine, check_shares
from scope_selfplay.controller.gangs import check_gang_name
from scope_selfplay.controller.manifests import COMPONENT, Component, gpus_of, pack_map
from scope_selfplay.controller.servers import is_vllm
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_cluster import (
    claim_problems,
    one_node_problems,
    own_quota_problems,
    peak_gpus,
    queue_problems,
    quota_problems,
)
from scope_selfplay.k8s.check_images import image_notes, image_problems
from scope_selfplay.k8s.check_nodes import node_problems
from scope_selfplay.k8s.check_references import (
    external_server_problems,
    reference_problems,
    tool_server_problems,
)
from scope_selfplay.k8s.check_rules import rule_problems
from scope_selfplay.k8s.check_secrets import secret_problems, tracking_problems
from scope_selfplay.k8s.check_version import version_notes, version_problems
from scope_selfplay.k8s.check_volume import probe_note, probe_problems, probe_result, storage_problems
from scope_selfplay.k8s.kubectl import Kubectl, kustomize
from scope_selfplay.k8s.objects import Body, ManifestProblem, name_of, planned_objects, pods_of, unpacked
from scope_selfplay.k8s.patches import CLAIM
from scope_selfplay.k8s.shared import SHARED
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.retrieval import retrieval_plan
from scope_selfplay.preflight import InputCheck, State
from scope_selfplay.preflight.examine import examine_for_cluster
from scope_selfplay.schedule import is_challenger_trained

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
"""Kubernetes releases whose schemas the objects must fit."""


class RunCheck(NamedTuple):
    """What a run's folder holds, what the run will add to it, and what is wrong; `notes` are not mistakes."""

    config: RunConfig
    objects: list[Body]
    problems: list[ManifestProblem]
    notes: list[str]


def check_folder(folder: Path) -> RunCheck:
    """Render, schemas, references, config, prompt packs and images. Raises ConfigError when nothing renders.

    The config is the one that the controller will see: with what components set on its command line.
    """
    objects = applied_objects(folder)
    config = config_of(objects, folder)
    packs = packs_of(objects, config.name)
    created = [*objects, *planned_objects(config, packs)]
    everything = unpacked(created)
    checks = examine_for_cluster(config)
    # A claim of another name than the base's exists outside the folder: only the cluster knows whether it does.
    claim = config.cluster.volume_claim
    elsewhere = [f"PersistentVolumeClaim/{claim}"] if claim != CLAIM else []
    # The controller refuses such a run too, and every object is named after it.
    rules = list(_name_problems(config)) or rule_problems(everything)
    found = [
        *reference_problems(everything, elsewhere),
        *rules,
        *_folder_problems(config, objects, packs),
        *one_node_problems(config, everything),
        *own_quota_problems(config, everything),
        *_judge_problems(config),
        *_trainer_problems(config),
        *image_problems(config),
        *external_server_problems(config, everything),
        *tool_server_problems(config, everything),
        *tracking_problems(config, everything),
        *(ManifestProblem(check.what, _said(check)) for check in checks if check.state is State.STOP),
    ]
    notes = [
        *image_notes(config),
        *_gpu_notes(config),
        *_retriever_notes(config),
        *(f"{check.what}: {_said(check)}" for check in checks if check.state is not State.STOP),
    ]
    if _has_schemas():
        found += schema_problems(everything)
    else:
        notes.append("schemas not checked: pip install 'scope-selfplay[k8s]'")
    return RunCheck(config, created, found, notes)


def _name_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    # Before Kubernetes 1.34 a Service is named by RFC 1035.
    if not config.name[0].isalpha():
        yield ManifestProblem("name", f"is {config.name!r}; on a cluster a run's id begins with a letter")
    try:
        check_gang_name(config)
    except ConfigError as error:
        yield ManifestProblem("name", str(error).removeprefix("name: "))


def _said(check: InputCheck) -> str:
    return f"{check.found}; {check.advice}" if check.advice else check.found


def check_cluster(checked: RunCheck, folder: Path, cluster: Kubectl) -> RunCheck:
    """`checked` with what this cluster would refuse or never start; notes name what this user may not see there.

    Raises OutsideError for a cluster that does not answer.
    """
    config, created, problems, notes = checked
    objects = unpacked(created)
    parts = [place for place in (folder / SHARED, folder) if place.is_dir()]
    version = cluster.version()
    notes = [*notes, *version_notes(version)]
    problems = [
        *problems,
        *version_problems(objects, version),
        *(ManifestProblem("cluster", line) for part in parts for line in cluster.refusals(part)),
    ]
    checks: dict[str, Callable[[], Iterator[ManifestProblem]]] = {
        "the queue": lambda: queue_problems(config, cluster),
        "the volume": lambda: claim_problems(config, objects, cluster),
        "Secrets": lambda: secret_problems(config, cluster),
        "storage classes": lambda: storage_problems(objects, cluster),
        "nodes and their GPUs": lambda: node_problems(config, objects, cluster),
        "quotas": lambda: quota_problems(config, objects, cluster),
    }
    for what, check in checks.items():
        try:
            problems += list(check())
        except ConfigError as error:
            notes = [*notes, f"{what} not checked: {error}"]
    # Who may not see pods knows nothing of a probe.
    with suppress(ConfigError):
        line, failed = probe_result(cluster)
        problems, notes = [*problems, *probe_problems(line, failed=failed)], [*notes, probe_note(line)]
    return RunCheck(config, created, problems, notes)


def config_of(objects: Sequence[Body], folder: Path) -> RunConfig:
    """The run's config as its controller reads it: the one run.yaml of a ConfigMap, then `--set` of components."""
    texts = [body["data"]["run.yaml"] for body in objects if "run.yaml" in (body.get("data") or {})]
    if len(texts) != 1:
        raise ConfigError(
            f"{folder}: {len(texts)} ConfigMaps have a run.yaml, expected one; see `scope k8s render`"
        )
    where = f"{folder}: run.yaml"
    overrides = [
        value
        for pods in pods_of(objects)
        if pods.labels.get(COMPONENT) == "controller"
        for container in pods.spec["containers"]
        for option, value in pairwise(container.get("args") or [])
        if option == "--set"
    ]
    return parse_config(parse_settings(texts[0], where), overrides, where=where)


def applied_objects(folder: Path) -> list[Body]:
    """What a person applies: the run's folder, and before it what the runs of the namespace share."""
    shared = next((place for place in (folder / SHARED, folder.parent / SHARED) if place.is_dir()), None)
    return [*(kustomize(shared) if shared else []), *kustomize(folder)]


def packs_of(objects: Sequence[Body], run: str) -> list[str]:
    """The prompt packs that the run's folder brings as ConfigMaps."""
    names = [body["metadata"]["name"] for body in objects if body.get("kind") == "ConfigMap"]
    return sorted(
        name.removeprefix(pack_map(run, "")) for name in names if name.startswith(pack_map(run, ""))
    )


def _folder_problems(
    config: RunConfig, objects: Sequence[Body], packs: Sequence[str]
) -> Iterator[ManifestProblem]:
    """Prompt packs that are not there, and a controller whose image is not that of its Jobs."""
    for name in (config.domain, *([config.judge.prompts] if config.judge.kind == "model" else [])):
        if name not in packs:
            message = "does not exist, and run.yaml names this pack; add ../prompts to the resources"
            yield ManifestProblem(f"ConfigMap/{pack_map(config.name, name)}", message)
    # The controller's image is set by kustomize, those of its Jobs by run.yaml.
    expected = config.cluster.images.worker
    for pods in pods_of(objects):
        for container in pods.containers if pods.labels.get(COMPONENT) == "controller" else ():
            image = container["image"]
            if image != expected:
                message = f"has image {image}, its Jobs take cluster.images.worker {expected} of run.yaml"
                yield ManifestProblem(pods.owner, f"{message}; make them the same")


def _gpu_notes(config: RunConfig) -> Iterator[str]:
    peaks = peak_gpus(config)
    if not any(peaks.values()):
        return
    yield "GPUs: " + ", ".join(f"{stage} {count}" for stage, count in peaks.items())
    if config.cluster.key_secret is None:
        yield "cluster.key_secret: not set, so servers are closed only where the cluster enforces NetworkPolicies"


def _judge_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    """Without a GPU the judge is `scope serve-judge`, which knows the articles of the embedded world alone."""
    server = config.cluster.judge
    if not server.serve or config.judge.kind != "model" or is_vllm(config, Component.JUDGE):
        return
    if config.corpus.path != "embedded" and not {"--rehearsal", "--corpus"} & set(server.args):
        yield ManifestProblem(
            "cluster.judge",
            "has no GPU, so it would judge the articles of the embedded world, and the corpus is "
            f"{config.corpus.path}; give it gpus and a model, or `args: [--rehearsal]` for a random judge",
        )


def _retriever_notes(config: RunConfig) -> Iterator[str]:
    """Planned for Wikipedia's passages: the server alone knows what its index takes, and refuses at its start."""
    server, plan = config.cluster.retriever, retrieval_plan(config, Assumptions())
    if plan is not None and plan.is_short:
        yield (
            f"cluster.retriever: has memory {server.memory}; {server.workers} search processes and an index of "
            f"{plan.passages:,} passages need {plan.memory_gib:.0f}Gi"
        )


def _trainer_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    cluster, stages = config.cluster, {"train_solver": config.solver, "train_challenger": config.challenger}
    engines = [name for name in stages if name == "train_solver" or is_challenger_trained(config, 1)]
    for name in engines:
        # A colocated vLLM is on the trainer's own GPUs.
        colocated = config.model.engine == "vllm_colocated"
        if colocated and not gpus_of(cluster, getattr(cluster, name)):
            message = "has no GPU, and model.engine vllm_colocated samples on the trainer's"
            advice = "give it gpus, or set model.engine: in_process"
            yield ManifestProblem(f"cluster.{name}", f"{message}; {advice}")
    for name, settings in stages.items():
        # Each GPU has a process of its own, and each process whole groups.
        pod = getattr(cluster, name)
        gpus = gpus_of(cluster, pod) * pod.nodes
        try:
            check_shares(settings, max(pod.nodes, gpus))
            check_engine(config.model.engine, gpus if name in engines else 0)
        except ConfigError as error:
            message = f"has {pod.gpus} GPUs on each of {pod.nodes} nodes: {error}"
            yield ManifestProblem(f"cluster.{name}", message)


def schema_problems(objects: Sequence[Body]) -> list[ManifestProblem]:
    """Every object that one of the releases would not take; fields that a release does not know count. What an operator
    brings, such as a PodMonitor, only its cluster can judge.

    Raises ConfigError where the package is missing.
    """
    if not _has_schemas():
        raise ConfigError("kubernetes-validate: not installed; pip install 'scope-selfplay[k8s]'")
    found = []
    for version in VERSIONS:
        for body in objects:
            kind, api = str(body.get("kind")), str(body.get("apiVersion"))
            if _is_of_others(api):
                continue
            # rbac.authorization.k8s.io/v1 -> rbac-v1, as the files are named.
            validator = _validator(version, kind.lower(), re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api))
            if validator is None:
                found.append(ManifestProblem(name_of(body), f"Kubernetes {version} has no {kind} of {api}"))
                continue
            for error in validator.iter_errors(body):
                where = error.json_path.removeprefix("$.")
                message = f"Kubernetes {version}: {where}: {error.message[:300]}"
                found.append(ManifestProblem(name_of(body), message))
    return found


def _is_of_others(api: str) -> bool:
    """Whether an API group is none of Kubernetes' own: those have no dot, or end in .k8s.io and are no experiment."""
    group = api.partition("/")[0] if "/" in api else ""
    return "." in group and not (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))


def _has_schemas() -> bool:
    return importlib.util.find_spec("kubernetes_validate") is not None


@cache
def _validator(version: str, kind: str, api: str) -> Any:
    """The package's own `validate` reads several megabytes for every object; here each schema is read once."""
    import jsonschema

    try:
        schema = _schema_file(version, f"{kind}-{api}")
    except FileNotFoundError:
        return None
    registry = schema @ _definitions(version)
    return jsonschema.validators.Draft202012Validator(schema.contents, registry=registry)


@cache
def _definitions(version: str) -> Any:
    import referencing

    return _schema_file(version, "_definitions") @ referencing.Registry()


def _schema_file(version: str, name: str) -> Any:
    import referencing
    from kubernetes_validate.utils import all_versions, schema_contents

    release = [known for known in all_versions() if known.startswith(f"{version}.")][-1]
    path = f"kubernetes-json-schema/v{release}-local-strict/{name}.json"
    return referencing.Resource.from_contents(schema_contents(path, version))
