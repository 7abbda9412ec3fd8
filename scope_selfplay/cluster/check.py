"""`scope k8s check`: everything wrong with a run's folder before it is applied, alone or on its cluster.

References, policies and an API server's rules are in `check_pods`, quotas and nodes in `check_cluster`; here are the
config's own settings and the schemas of Kubernetes releases, which the package `kubernetes-validate` brings along.
"""

import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.base.errors import ConfigError, Finding, State
from scope_selfplay.cluster.check_cluster import (
    claim_problems,
    node_problems,
    one_node_problems,
    own_quota_problems,
    peak_gpus,
    probe_findings,
    quota_problems,
    secret_problems,
    storage_problems,
    version_findings,
)
from scope_selfplay.cluster.check_pods import reference_problems, rule_problems, server_problems
from scope_selfplay.cluster.folder import SHARED
from scope_selfplay.cluster.kubectl import Kubectl, kustomize
from scope_selfplay.cluster.objects import allows, name_of, planned_objects, pods_of
from scope_selfplay.cluster.pods import CLAIM, Body, Component, Label, gpus_of, pack_map
from scope_selfplay.cluster.prepare import TRACKERS
from scope_selfplay.cluster.stages import is_vllm, settings_of
from scope_selfplay.config.cluster import has_registry, image_name
from scope_selfplay.config.load import CLUSTER_FILE, parse_config, parse_settings, with_cluster
from scope_selfplay.config.run import RunConfig
from scope_selfplay.config.training import check_engine, check_shares
from scope_selfplay.plan.load import retrieval_plan
from scope_selfplay.plan.preflight import examine_for_cluster
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.run.begin import JUDGE_PACK
from scope_selfplay.run.schedule import is_challenger_trained

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
"""Kubernetes releases whose schemas the objects must fit."""
_HTTPS = 443
_ELSEWHERE = ("wandb", "comet_ml")
"""Trackers that call hosts outside the cluster over HTTPS; where an MLflow is, its address says, which a Secret may
hold."""


class RunCheck(NamedTuple):
    """What a run's folder holds, what the run will add to it, and what was found; `notes` are not mistakes."""

    config: RunConfig
    objects: list[Body]
    findings: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        return [each for each in self.findings if each.state is State.STOP]

    @property
    def notes(self) -> list[str]:
        return [str(each) for each in self.findings if each.state is not State.STOP]


def check_folder(folder: Path) -> RunCheck:
    """Render, schemas, references, config, prompt packs and images. Raises ConfigError when nothing renders.

    The config is the one that the controller will see: with what components set on its command line.
    """
    objects = applied_objects(folder)
    config = config_of(objects, folder)
    packs = packs_of(objects, config.name)
    created = [*objects, *planned_objects(config, packs)]
    # A claim of another name than the base's exists outside the folder: only the cluster knows whether it does.
    claim = config.cluster.volume_claim
    elsewhere = [f"PersistentVolumeClaim/{claim}"] if claim != CLAIM else []
    rules = rule_problems(created)
    # Before Kubernetes 1.34 a Service is named by RFC 1035. The controller refuses such a run too, and every object is
    # named after it.
    if not config.name[0].isalpha():
        rules = [Finding("name", f"is {config.name!r}; on a cluster a run's id begins with a letter")]
    found = [
        *reference_problems(created, elsewhere),
        *rules,
        *_folder_problems(config, objects, packs),
        *one_node_problems(config, created),
        *own_quota_problems(config, created),
        *_judge_problems(config),
        *_trainer_problems(config),
        *_image_problems(config),
        *server_problems(config, created),
        *_tracking_problems(config, created),
        *_store_problems(config),
        *_notes(config),
        *examine_for_cluster(config),
    ]
    try:
        found += schema_problems(created)
    except ConfigError as error:
        found.append(_unchecked("schemas", error))
    return RunCheck(config, created, found)


def check_cluster(checked: RunCheck, folder: Path, cluster: Kubectl) -> RunCheck:
    """`checked` with what this cluster would refuse or never start; notes name what this user may not see there.

    Raises OutsideError for a cluster that does not answer.
    """
    config, objects, _ = checked
    parts = [place for place in (folder / SHARED, folder) if place.is_dir()]
    found = [*checked.findings, *version_findings(cluster.version())]
    found += [Finding("cluster", line) for part in parts for line in cluster.refusals(part)]
    checks = {
        "the volume": claim_problems(config, objects, cluster),
        "Secrets": secret_problems(config, cluster),
        "storage classes": storage_problems(objects, cluster),
        "nodes and their GPUs": node_problems(config, objects, cluster),
        "quotas": quota_problems(config, objects, cluster),
        "what the volume can do": probe_findings(config, cluster),
    }
    for what, findings in checks.items():
        try:
            found += list(findings)
        except ConfigError as error:
            found.append(_unchecked(what, error))
    return RunCheck(config, objects, found)


def _unchecked(what: str, why: ConfigError) -> Finding:
    return Finding(what, f"not checked: {why}", State.OK)


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
        if pods.labels.get(Label.COMPONENT) == "controller"
        for container in pods.spec["containers"]
        for option, value in pairwise(container.get("args") or [])
        if option == "--set"
    ]
    shared = next(
        (body["data"][CLUSTER_FILE] for body in objects if CLUSTER_FILE in (body.get("data") or {})), ""
    )
    data = with_cluster(parse_settings(texts[0], where), parse_settings(shared, f"{folder}: {CLUSTER_FILE}"))
    return parse_config(data, overrides, where=where)


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


def _folder_problems(config: RunConfig, objects: Sequence[Body], packs: Sequence[str]) -> Iterator[Finding]:
    """Prompt packs that are not there, and a controller whose image is not that of its Jobs."""
    for name in (config.domain, *([JUDGE_PACK] if config.judge.kind == "model" else [])):
        if name not in packs:
            message = "does not exist, and run.yaml names this pack; add ../prompts to the resources"
            yield Finding(f"ConfigMap/{pack_map(config.name, name)}", message)
    # The controller's image is as it was rendered, those of its Jobs are as run.yaml says now.
    expected = config.cluster.images.worker
    for pods in pods_of(objects):
        for container in pods.containers if pods.labels.get(Label.COMPONENT) == "controller" else ():
            image = container["image"]
            if image != expected:
                message = f"has image {image}, its Jobs take cluster.images.worker {expected} of run.yaml"
                yield Finding(pods.owner, f"{message}; make them the same")


def _notes(config: RunConfig) -> Iterator[Finding]:
    cluster, peaks, note = config.cluster, peak_gpus(config), partial(Finding, state=State.OK)
    named = sorted({cluster.images.worker, cluster.images.trainer} - {""})
    loose = [image for image in named if "@sha256:" not in image]
    if loose:
        yield note("images", f"without a digest may change under a run: {', '.join(loose)}")
    if bare := [image for image in named if not has_registry(image)]:
        why = f"without a registry are asked of docker.io by nodes that do not have them: {', '.join(bare)}"
        yield note("images", why, advice="name yours in cluster.images.registry")
    if latest := [image for image in loose if image.rpartition("/")[2].partition(":")[2] in ("", "latest")]:
        why = f"called latest are pulled at every start, also where they were loaded: {', '.join(latest)}"
        yield note("images", why, advice="name them by another tag, or by digest")
    if any(peaks.values()):
        yield note("GPUs", ", ".join(f"{stage} {count}" for stage, count in peaks.items()))
        if cluster.key_secret is None:
            why = "not set, so servers are closed only where the cluster enforces NetworkPolicies"
            yield note("cluster.key_secret", why)
    # Planned for Wikipedia's passages: the server alone knows what its index takes, and refuses at its start.
    server, plan = cluster.retriever, retrieval_plan(config, Assumptions())
    if plan is not None and plan.is_short:
        takes = f"{server.workers} search processes and an index of {plan.passages:,} passages"
        why = f"has memory {server.memory}; {takes} need {plan.memory_gib:.0f}Gi"
        yield note("cluster.retriever", why)


def _store_problems(config: RunConfig) -> Iterator[Finding]:
    """What needs a folder that several pods see."""
    cluster = config.cluster
    if not cluster.store:
        return
    if cluster.store.startswith("file:"):
        yield Finding("cluster.store", "is a folder, and each pod has its own; name an s3:// or gs:// one")
    for name in (name for name in _trained(config) if getattr(cluster, name).nodes > 1):
        message = "has several nodes, which write into one folder, and with cluster.store each has a disk of its own"
        yield Finding(
            f"cluster.{name}.nodes", f"{message}; train on one node, or take a ReadWriteMany volume"
        )
    if cluster.evaluate is not None:
        message = (
            "reads a run's folder, which no pod has with cluster.store; leave it out, and `scope eval` what"
        )
        yield Finding("cluster.evaluate", f"{message} `scope k8s fetch --checkpoints` brought")


def _judge_problems(config: RunConfig) -> Iterator[Finding]:
    """Without a GPU the judge is `scope serve-judge`, which reads the language of the embedded world alone."""
    server = config.cluster.judge
    if not server.serve or config.judge.kind != "model" or is_vllm(config, Component.JUDGE):
        return
    if config.corpus.path != "embedded" and "--rehearsal" not in server.args:
        yield Finding(
            "cluster.judge",
            "has no GPU, so it would judge the articles of the embedded world, and the corpus is "
            f"{config.corpus.path}; give it gpus and a model, or `args: [--rehearsal]` for a random judge",
        )


def _trainer_problems(config: RunConfig) -> Iterator[Finding]:
    cluster, engine = config.cluster, config.model.engine
    for name, settings in {"train_solver": config.solver, "train_challenger": config.challenger}.items():
        pod, is_used = getattr(cluster, name), name in _trained(config)
        # A colocated vLLM is on the trainer's own GPUs.
        if is_used and engine == "vllm_colocated" and not gpus_of(cluster, pod):
            message = "has no GPU, and model.engine vllm_colocated samples on the trainer's"
            yield Finding(f"cluster.{name}", f"{message}; give it gpus, or set model.engine: in_process")
        # Each GPU has a process of its own, and each process whole groups.
        gpus = gpus_of(cluster, pod) * pod.nodes
        try:
            check_shares(settings, max(pod.nodes, gpus))
            check_engine(engine, gpus if is_used else 0)
        except ConfigError as error:
            message = f"has {pod.gpus} GPUs on each of {pod.nodes} nodes: {error}"
            yield Finding(f"cluster.{name}", message)


def _trained(config: RunConfig) -> list[str]:
    return ["train_solver", *(["train_challenger"] if is_challenger_trained(config, 1) else [])]


def _image_problems(config: RunConfig) -> Iterator[Finding]:
    """What trains or serves on a GPU has CUDA in its image, which the worker's lacks; what trains or serves a policy on
    the CPU has torch, which the slim image, known by its name, lacks."""
    cluster = config.cluster
    images, stages = cluster.images, ("train_challenger", "train_solver")
    models = (Component.JUDGE, Component.SOLVER, Component.CHALLENGER)
    served = [component for component in models if settings_of(config, component).serve]
    on_gpus = [stage for stage in stages if gpus_of(cluster, getattr(cluster, stage))]
    on_gpus += [component.value for component in served if is_vllm(config, component)]
    if on_gpus and not images.trainer:
        yield Finding(
            "cluster.images.trainer",
            f"is not named, so {', '.join(on_gpus)} would get GPUs and the image of the workers, which has no CUDA; "
            "name one built from k8s/images/trainer.Dockerfile",
        )
    users = [name for name in _trained(config) if not images.trainer and name not in on_gpus]
    users += [each for each in served if each is not Component.JUDGE and each not in on_gpus]
    if users and image_name(images.worker) == "scope-selfplay":
        yield Finding(
            "cluster.images.worker",
            f"is {images.worker}, the slim image, which has no torch for {', '.join(users)}; "
            "name the one of `make image-local`",
        )


def _tracking_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[Finding]:
    """Training pods that do not know a tracker's key, or may not call it."""
    trainers = [pods for pods in pods_of(objects) if pods.labels.get(Label.COMPONENT) == Component.TRAINER]
    policies = [body for body in objects if body.get("kind") == "NetworkPolicy"]
    for tracker in config.tracking.report_to if trainers else ():
        names, where = TRACKERS.get(tracker, ()), f"tracking.report_to {tracker}"
        variables = [each for container in trainers[0].containers for each in container.get("env") or []]
        known = {each["name"]: each.get("value", "") for each in variables if each["name"] in names}
        # A whole Secret's variables are not seen here.
        if names and not known and not any(each.get("envFrom") for each in trainers[0].containers):
            message = f"needs {names[0]} in training pods; create a Secret with this key, and name it in "
            yield Finding(where, f"{message}cluster.tracking_secret")
        is_open = allows(policies, "Egress", trainers[0], None, _HTTPS, pods_of(objects))
        if tracker in _ELSEWHERE and "offline" not in known.values() and not is_open:
            message = f"is outside the cluster, and no NetworkPolicy lets training out to port {_HTTPS}"
            yield Finding(where, f"{message}; add the component tracking")


def schema_problems(objects: Sequence[Body]) -> list[Finding]:
    """Every object that one of the releases would not take; fields that a release does not know count. What an operator
    brings, such as a PodMonitor, only its cluster can judge.

    Raises ConfigError where the package is missing.
    """
    if importlib.util.find_spec("kubernetes_validate") is None:
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
                found.append(Finding(name_of(body), f"Kubernetes {version} has no {kind} of {api}"))
                continue
            for error in validator.iter_errors(body):
                where = error.json_path.removeprefix("$.")
                message = f"Kubernetes {version}: {where}: {error.message[:300]}"
                found.append(Finding(name_of(body), message))
    return found


def _is_of_others(api: str) -> bool:
    """Whether an API group is none of Kubernetes' own: those have no dot, or end in .k8s.io and are no experiment."""
    group = api.partition("/")[0] if "/" in api else ""
    return "." in group and not (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))


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
