"""The Job of one attempt of a stage, and what its nodes need to meet. Pure: equal arguments, equal bodies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scope_selfplay.config import RunConfig
from scope_selfplay.config.cluster import StageConfig, TrainingStageConfig
from scope_selfplay.controller.manifests import (
    ATTEMPT,
    CONFIG_FOLDER,
    RUN,
    RUNS,
    SHARD,
    SHARDS,
    Body,
    Component,
    ManifestContext,
    Program,
    RunStage,
    StageShard,
    gpus_of,
    job_name,
    labels_of,
    pod_template,
    short_hash,
    stamped,
)
from scope_selfplay.controller.servers import Server, endpoint_settings
from scope_selfplay.store import Stage

_TRAINS = (Stage.CHALLENGER, Stage.SOLVER)
_RENDEZVOUS_PORT = 29500


@dataclass(frozen=True)
class StageAttempt:
    """One try of a step; `shard` is None where one Job does it all."""

    step: RunStage
    number: int
    shard: StageShard | None = None


def stage_job(context: ManifestContext, attempt: StageAttempt, servers: tuple[Server, ...]) -> Body:
    """The Job of one attempt: one pod per node, never restarted in place; the controller decides about the next."""
    config, step = context.config, attempt.step
    name = job_name(config.name, step, attempt.number, attempt.shard)
    labels = labels_of(config, component_of(step.stage)) | step.labels | {ATTEMPT: str(attempt.number)}
    if attempt.shard is not None:
        labels[SHARDS] = str(attempt.shard.of)
        if attempt.shard.number is not None:
            labels[SHARD] = str(attempt.shard.number)
    spec = work_spec(context, attempt, servers, labels, first=f"{name}-0.{ranks_name(config, step)}")
    if nodes_of(config, step.stage) > 1:
        spec["template"]["spec"]["subdomain"] = ranks_name(config, step)
    return stamped(context, "Job", name, labels, spec, what=spec_hash(context, attempt))


def work_spec(
    context: ManifestContext,
    attempt: StageAttempt,
    servers: Sequence[Server],
    labels: Mapping[str, str],
    *,
    first: str = "",
) -> Body:
    """The spec of a stage's Job; `first` is where its first node can be reached, of several."""
    config, stage = context.config, attempt.step.stage
    settings, nodes = stage_settings(config, stage), nodes_of(config, stage)
    template = pod_template(context, _stage_program(context, attempt, servers, first), dict(labels))
    template["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": settings.grace}
    spec: Body = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": settings.deadline,
        "ttlSecondsAfterFinished": config.cluster.keep,
        "template": template,
    }
    if nodes > 1:
        # One rank lost fails the Job, which ends the other ranks: the next attempt starts all of them together.
        spec |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
    return spec


def rank_service(context: ManifestContext, step: RunStage) -> Body:
    """Names for the nodes of one training: `<job>-0.<service>` is where the ranks meet."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {RUN: context.config.name} | step.labels,
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT, "protocol": "TCP"}],
    }
    labels = labels_of(context.config, component_of(step.stage)) | step.labels
    return stamped(context, "Service", ranks_name(context.config, step), labels, spec)


def stage_settings(config: RunConfig, stage: Stage) -> StageConfig:
    found: StageConfig = getattr(config.cluster, stage.job_name.replace("-", "_"))
    return found


def nodes_of(config: RunConfig, stage: Stage) -> int:
    settings = stage_settings(config, stage)
    return settings.nodes if isinstance(settings, TrainingStageConfig) else 1


def shard_count(config: RunConfig, stage: Stage) -> int:
    return config.cluster.make_tasks.shards if stage is Stage.TASKS else 1


def stage_shards(count: int) -> tuple[StageShard | None, ...]:
    """The shards of a stage that `count` Jobs share, and at the end the Job that ends the stage."""
    if count == 1:
        return (None,)
    return (*(StageShard(number, count) for number in range(count)), StageShard(None, count))


def ranks_name(config: RunConfig, step: RunStage) -> str:
    return f"{config.name}-{step.name}"


def spec_hash(context: ManifestContext, attempt: StageAttempt) -> str:
    """Names what an attempt computes: settings, prompts, stage and shard; not where or how fast."""
    shard = tuple(attempt.shard or ())
    return short_hash(context.config.hash, context.prompt_hash, attempt.step.name, str(shard))


def _stage_program(
    context: ManifestContext, attempt: StageAttempt, servers: Sequence[Server], first: str
) -> Program:
    config, step = context.config, attempt.step
    settings = stage_settings(config, step.stage)
    arguments = ["--config", f"{CONFIG_FOLDER}/run.yaml", "--root", RUNS]
    arguments += ["--iteration", str(step.iteration), "--attempt", str(attempt.number)]
    shard = attempt.shard
    if shard is not None:
        arguments += ["--collect"] if shard.number is None else ["--shard", f"{shard.number}/{shard.of}"]
    for setting in endpoint_settings(config, servers):
        arguments += ["--set", setting]
    environment: dict[str, str] = {}
    if isinstance(settings, TrainingStageConfig):
        environment = _rank_variables(gpus_of(config.cluster, settings), settings, first)
    images = config.cluster.images
    image = images.trainer if step.stage in _TRAINS and images.trainer else images.worker
    command = ["python", "-m", f"jobs.{step.stage.job_name.replace('-', '_')}", *arguments]
    return Program(image, command, settings, environment, _tracking(config, step.stage))


def _tracking(config: RunConfig, stage: Stage) -> Body:
    """What trainers, and nobody else, are told of the trackers that they report to."""
    secret = config.cluster.tracking_secret
    if secret is None or stage not in _TRAINS:
        return {}
    return {"envFrom": [{"secretRef": {"name": secret}}]}


def _rank_variables(gpus: int, settings: TrainingStageConfig, first: str) -> dict[str, str]:
    """On how many processes and nodes a training job starts itself; nothing where it is one process."""
    told = {"SCOPE_PROCESSES": str(gpus)} if gpus > 1 else {}
    if settings.nodes > 1:
        # An Indexed Job adds JOB_COMPLETION_INDEX.
        told |= {"SCOPE_NODES": str(settings.nodes), "SCOPE_RENDEZVOUS": f"{first}:{_RENDEZVOUS_PORT}"}
        if settings.sharding == "hybrid":
            told["SCOPE_SHARDING"] = settings.sharding
    return told


def component_of(stage: Stage) -> Component:
    return Component.TRAINER if stage in _TRAINS else Component.WORKER
