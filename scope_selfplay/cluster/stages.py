"""The Job of one attempt of a stage, the servers that it needs beside it, and how they find each other. Pure: equal
arguments, equal bodies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scope_selfplay.base.values import Role
from scope_selfplay.cluster.pods import (
    CACHE,
    CONFIG_FOLDER,
    IN_PODS,
    KEY_VARIABLE,
    PORT,
    VOLUME,
    Body,
    Component,
    Label,
    ManifestContext,
    Mount,
    Place,
    Program,
    RunStage,
    StageShard,
    gpus_of,
    job_name,
    key_variable,
    labels_of,
    pod_template,
    run_mounts,
    server_name,
    short_hash,
    stage_variables,
    stamped,
    stored,
)
from scope_selfplay.config.base import ON_ONE_GPU, parameters_in
from scope_selfplay.config.cluster import (
    GRACE,
    PodConfig,
    PolicyServerConfig,
    ServerConfig,
    TrainingStageConfig,
    amount,
)
from scope_selfplay.config.run import RunConfig
from scope_selfplay.run.schedule import PolicyVersion, challenger_of, is_challenger_trained, promoted_solver
from scope_selfplay.store.folder import RunFolder, Stage

KEPT = 86_400
"""Seconds for which a finished Job and its logs are kept; a restarted controller reads the result from the Job."""
_TRAINS = (Stage.CHALLENGER, Stage.SOLVER)
_RENDEZVOUS_PORT = 29500
_GRACE = 30
"""Seconds between SIGTERM and SIGKILL of a server."""
STARTUP = 1800
"""Seconds from the creation of a server until it must be ready."""
_PROBE = 60
"""Timeout of the one-token probe in seconds: vLLM's `/health` succeeds even when the engine hangs. After three timeouts
in a row during which no other request got a token, the server is restarted."""
_RETRIEVER_GRACE = 75
"""It answers what has arrived within its deadline, 60 s, and needs up to ten seconds more to end."""

_HEALTH: Body = {"httpGet": {"path": "/health", "port": "http"}}
# vLLM answers /health as soon as its HTTP side lives; only a token shows that the engine does. Behind a full queue
# the canary's own may come too late: then the tokens of others, counted in /metrics, show it as well.
_CANARY = """\
import json, os, sys, urllib.request
url, model, seconds = sys.argv[1:]
def tokens():
    try:
        reply = urllib.request.urlopen(url.replace("/v1/completions", "/metrics"), timeout=5).read().decode()
    except OSError:
        return []
    return [line for line in reply.splitlines() if line.startswith(("vllm:prompt_tokens", "vllm:generation_tokens"))]
before = tokens()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("VLLM_API_KEY", "")}
body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
try:
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=float(seconds)).read()
except OSError:
    if not before or tokens() in ([], before):
        raise
"""


@dataclass(frozen=True)
class Server:
    """`step` is the first stage that it serves, None for the whole run; `model` a folder on the volume, or `embedded`.

    Replicas have a name each, so that a stage can choose which one it asks.
    """

    component: Component
    name: str
    model: str
    step: RunStage | None
    replica: int
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def servers_of(
    config: RunConfig, step: RunStage, promoted: Sequence[bool], place: Place = IN_PODS
) -> tuple[Server, ...]:
    """The servers of one stage; `promoted[t]` says whether S_t was promoted, for every t before the iteration.

    Judge and retriever serve every stage. Of the policies: A and B meet the Solver that was promoted last (in iteration
    0 there is none) and B its Challenger, C none, D only the Solver that was just trained.
    """
    folder, policies = RunFolder(Path(place.runs) / config.name), policies_of(config, step, promoted)
    models: list[tuple[Component, str, RunStage | None]] = [
        # These two serve from the first stage to the last.
        (Component.JUDGE, config.cluster.judge.model, None),
        (Component.RETRIEVER, config.cluster.retriever.index, None),
    ]
    for component, policy in policies.items():
        model = str(policy.checkpoint(folder) or config.model.path)
        # The Solver of B is that of A, where the iteration has one: its servers go on.
        is_kept = component is Component.SOLVER and step.stage is Stage.TASKS and step.iteration > 0
        begun = Stage.CHALLENGER if is_kept and is_challenger_trained(config, step.iteration) else step.stage
        models.append((component, model, RunStage(step.iteration, begun)))
    return tuple(
        Server(component, name, model, first, replica, *place.address(name))
        for component, model, first in models
        if settings_of(config, component).serve and place.serves
        for replica in range(getattr(settings_of(config, component), "replicas", 1))
        for name in (server_name(config.name, component, first, replica),)
    )


def policies_of(
    config: RunConfig, step: RunStage, promoted: Sequence[bool]
) -> dict[Component, PolicyVersion]:
    """The policies that a stage is served."""
    solver = promoted_solver(step.iteration - 1, lambda iteration: promoted[iteration])
    match step.stage:
        case Stage.CHALLENGER:
            return {Component.SOLVER: solver}
        case Stage.TASKS:
            served = {Component.SOLVER: solver} if step.iteration > 0 else {}
            return {Component.CHALLENGER: challenger_of(config, step.iteration), **served}
        case Stage.COMPARE:
            return {Component.SOLVER: PolicyVersion(Role.SOLVER, step.iteration)}
        case Stage.SOLVER:
            return {}


def settings_of(config: RunConfig, component: Component) -> ServerConfig:
    found: ServerConfig = getattr(config.cluster, component.value)
    return found


def endpoint_settings(config: RunConfig, servers: Sequence[Server]) -> list[str]:
    """`key=value` overrides that tell a stage where its servers are, and which variable holds their key."""
    groups = {
        Component.JUDGE: "judge.endpoint",
        Component.SOLVER: "partners.solver",
        Component.CHALLENGER: "partners.challenger",
        Component.RETRIEVER: "search",
    }
    settings: list[str] = []
    for component in dict.fromkeys(server.component for server in servers):
        group = groups[component]
        urls = [server.url for server in servers if server.component is component]
        if component is Component.RETRIEVER:
            settings.append(f"{group}.url={urls[0]}")
        else:
            listed = ", ".join(f"{url}/v1" for url in urls)
            settings.append(f"{group}.base_url={listed if len(urls) == 1 else f'[{listed}]'}")
        if config.cluster.key_secret is not None:
            settings.append(f"{group}.api_key_env={KEY_VARIABLE}")
    return settings


def server_deployment(context: ManifestContext, server: Server) -> Body:
    """One replica that is replaced only after it has gone: there are no GPUs for two."""
    config = context.config
    labels = _server_labels(config, server)
    mounts = run_mounts(config, context.packs)
    if is_vllm(config, server.component) and not config.cluster.store:
        mounts.append(cache_mount(config, server.component, server.replica))
    grace = _RETRIEVER_GRACE if server.component is Component.RETRIEVER else _GRACE
    # A server reads models and indexes; it writes nothing on the volume but what it compiles.
    template = pod_template(
        config.cluster,
        _server_program(context, server),
        labels,
        mounts,
        restart="Always",
        grace=grace,
        writes=False,
        # It is made again elsewhere: nodes may be consolidated, as the component disruption-budgets allows.
        stays=False,
    )
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": {Label.RUN: config.name, Label.SERVER: server.name}},
        "template": template,
    }
    return stamped(context, "Deployment", server.name, labels, spec)


def server_service(context: ManifestContext, server: Server) -> Body:
    spec = {
        "selector": {Label.RUN: context.config.name, Label.SERVER: server.name},
        "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    labels = _server_labels(context.config, server)
    return stamped(context, "Service", server.name, labels, spec)


def _server_program(context: ManifestContext, server: Server) -> Program:
    """How a server is started and asked whether it lives."""
    config = context.config
    settings, images = settings_of(config, server.component), config.cluster.images
    liveness: Body = {**_HEALTH, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3}
    image = images.worker
    environment: dict[str, str | Body] = {}
    if is_vllm(config, server.component):
        image = images.trainer or images.worker
        url = f"http://127.0.0.1:{server.port}/v1/completions"
        command = ["python3", "-c", _CANARY, url, served_name(config, server.component), str(_PROBE)]
        # Each look at /metrics may take 5 s.
        times = {"periodSeconds": 60, "timeoutSeconds": _PROBE + 15, "failureThreshold": 3}
        liveness = {"exec": {"command": command}, **times}
    elif server.component in (Component.SOLVER, Component.CHALLENGER):
        cores = amount(settings.amounts(tiny=config.cluster.tiny)["cpu"])
        environment = {"OMP_NUM_THREADS": str(max(1, int(cores)))}
    extra: Body = {
        # Server-side apply tells ports apart by number and protocol; older servers want both written out.
        "ports": [{"name": "http", "containerPort": server.port, "protocol": "TCP"}],
        "startupProbe": {**_HEALTH, "periodSeconds": 10, "failureThreshold": max(1, STARTUP // 10)},
        "readinessProbe": {**_HEALTH, "periodSeconds": 10, "timeoutSeconds": 5},
        "livenessProbe": liveness,
    }
    environment |= key_variable(config.cluster)
    command = _server_command(config, server, context.place.host)
    before = small_index(config) if server.component is Component.RETRIEVER and config.cluster.store else {}
    pulls = [] if before else _server_pulls(config, server)
    return Program(image, command, settings, environment, extra, before, pulls)


def _server_pulls(config: RunConfig, server: Server) -> list[str]:
    """What a server reads where it has a disk of its own, as options and arguments of `python -m jobs pull`."""
    encoder = config.cluster.prepare.encoder if server.component is Component.RETRIEVER else None
    # Some indexes have their encoder in them.
    maybe = ["--maybe", stored(encoder_folder(encoder))] if encoder else []
    is_read = server.component is not Component.JUDGE or is_vllm(config, Component.JUDGE)
    return [*maybe, stored(server.model)] if is_read and server.model.startswith(f"{VOLUME}/") else []


def encoder_folder(repository: str) -> str:
    return f"{VOLUME}/models/{repository.partition('@')[0].rpartition('/')[2]}"


def cache_mount(config: RunConfig, component: Component, replica: int) -> Mount:
    """The mount of a server's own folder on the volume, which it can write: by component, image and base model.

    Replicas have one each: vLLM does not expect that others write into its own.
    """
    cluster = config.cluster
    base = cluster.judge.model if component is Component.JUDGE else config.model.path
    number = f"-{replica}" if replica else ""
    name = f"{component}{number}-{short_hash(cluster.images.trainer or cluster.images.worker, base)}"
    return Mount("data", None, CACHE, read_only=False, below=f"runs/{config.name}/cache/{name}")


def small_index(config: RunConfig) -> dict[str, list[str]]:
    """Of a run in tiny mode: its index is made in seconds, before what waits for it."""
    cluster = config.cluster
    command = ["scope", "index", "build", f"{CONFIG_FOLDER}/run.yaml", cluster.retriever.index]
    return {"index": command} if cluster.tiny and cluster.retriever.serve else {}


def is_vllm(config: RunConfig, component: Component) -> bool:
    """Without a GPU the library's own servers take its place, unless it is asked for."""
    settings = settings_of(config, component)
    if not isinstance(settings, PolicyServerConfig):
        return False
    return settings.vllm or gpus_of(config.cluster, settings) > 0


def served_name(config: RunConfig, component: Component) -> str:
    """The name under which a server knows its model."""
    asked = config.judge.endpoint.model if component is Component.JUDGE else None
    return asked or component.value


def _server_command(config: RunConfig, server: Server, host: str) -> list[str]:
    settings = settings_of(config, server.component)
    address = ["--host", host, "--port", str(server.port)]
    has_key = config.cluster.key_secret is not None
    if is_vllm(config, server.component):
        assert isinstance(settings, PolicyServerConfig), "the retriever is no vLLM"
        known = ["--served-model-name", served_name(config, server.component)]
        copies, width = copies_of(config, server.component, settings) if settings.gpus else (1, 1)
        known += ["--tensor-parallel-size", str(width)]
        known += ["--data-parallel-size", str(copies)] if copies > 1 else []
        known += _UNROUNDED if server.component is Component.JUDGE and settings.gpus else []
        return ["vllm", "serve", server.model, *address, *known, *settings.args]
    match server.component:
        case Component.RETRIEVER:
            command = ["scope", "serve-retriever", server.model]
            own = any(argument.partition("=")[0] == "--workers" for argument in settings.args)
            if (workers := config.cluster.retriever.workers) > 1 and not own:
                command.append(f"--workers={workers}")
        case Component.JUDGE:
            command = ["scope", "serve-judge"]
        case _:
            model = config.model
            command = ["scope", "serve-model", server.model]
            command += ["--slots", str(model.slots), "--max-length", str(model.max_length)]
    # What a run's config says for one server comes last, and counts.
    option = "--token-env" if server.component is Component.RETRIEVER else "--api-key-env"
    return [*command, *address, *([f"{option}={KEY_VARIABLE}"] if has_key else []), *settings.args]


_UNROUNDED = ["--hf-overrides", '{"head_dtype": "float32"}']
"""Logits of bfloat16 are rounded to an eighth, more than what parts two answers to a small judge. On a CPU every token
would cost a copy of the head; a vLLM that knows it of pooling models alone goes on as it was. One's own is last."""

_OPTIONS = ("--tensor-parallel-size", "-tp", "--data-parallel-size", "-dp", "--pipeline-parallel-size", "-pp")


def copies_of(config: RunConfig, component: Component, settings: PolicyServerConfig) -> tuple[int, int]:
    """How many copies of its model a vLLM has, and on how many GPUs each.

    As the config says, else one GPU for each copy where the model's name says that it fits one: GPUs exchange nothing
    then, and each has a queue and a cache of its own.
    """
    if any(argument.partition("=")[0] in _OPTIONS for argument in settings.args):
        # The arguments say it; what they leave out is as in vLLM.
        return 1, 1
    cluster = config.cluster
    names = [config.model.path, cluster.prepare.model]
    if component is Component.JUDGE and cluster.judge.model != config.model.path:
        names = [cluster.judge.model, cluster.prepare.judge]
    sizes = [size for name in names if name and (size := parameters_in(name)) is not None]
    fits_one = bool(sizes) and max(sizes) <= ON_ONE_GPU
    width = settings.tensor_parallel or (1 if fits_one else settings.gpus)
    return settings.gpus // width, width


def _server_labels(config: RunConfig, server: Server) -> dict[str, str]:
    step = server.step.labels if server.step else {}
    return labels_of(config, server.component) | step | {Label.SERVER: server.name}


@dataclass(frozen=True)
class StageAttempt:
    """One try of a step; `shard` is None where one Job does it all."""

    step: RunStage
    number: int
    shard: StageShard | None = None


def stage_job(
    context: ManifestContext, attempt: StageAttempt, servers: tuple[Server, ...], pulls: Sequence[str] = ()
) -> Body:
    """The Job of one attempt: one pod per node, never restarted in place; the controller decides about the next.

    `pulls` are what it needs of `cluster.store`.
    """
    config, step = context.config, attempt.step
    name = job_name(config.name, step, attempt.number, attempt.shard)
    labels = labels_of(config, component_of(step.stage)) | step.labels | {Label.ATTEMPT: str(attempt.number)}
    if attempt.shard is not None:
        labels[Label.SHARDS] = str(attempt.shard.of)
        if attempt.shard.number is not None:
            labels[Label.SHARD] = str(attempt.shard.number)
    nodes, ranks = nodes_of(config, step.stage), ranks_name(config, step)
    program = replace(_stage_program(context, attempt, servers, f"{name}-0.{ranks}"), pulls=pulls)
    mounts = run_mounts(config, context.packs)
    template = pod_template(config.cluster, program, labels, mounts, grace=GRACE)
    spec: Body = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": config.cluster.deadline,
        "ttlSecondsAfterFinished": KEPT,
        "template": template,
    }
    if nodes > 1:
        # One rank lost fails the Job, which ends the other ranks: the next attempt starts all of them together.
        spec |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
        template["spec"]["subdomain"] = ranks
    return stamped(context, "Job", name, labels, spec, what=spec_hash(context, attempt))


def rank_service(context: ManifestContext, step: RunStage) -> Body:
    """Names for the nodes of one training: `<job>-0.<service>` is where the ranks meet."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {Label.RUN: context.config.name} | step.labels,
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT, "protocol": "TCP"}],
    }
    labels = labels_of(context.config, component_of(step.stage)) | step.labels
    return stamped(context, "Service", ranks_name(context.config, step), labels, spec)


def stage_settings(config: RunConfig, stage: Stage) -> PodConfig:
    found: PodConfig = getattr(config.cluster, stage.job_name.replace("-", "_"))
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
    arguments = ["--config", context.place.config, "--root", context.place.runs]
    arguments += ["--iteration", str(step.iteration), "--attempt", str(attempt.number)]
    shard = attempt.shard
    if shard is not None:
        arguments += ["--collect"] if shard.number is None else ["--shard", f"{shard.number}/{shard.of}"]
    for setting in endpoint_settings(config, servers):
        arguments += ["--set", setting]
    environment = stage_variables(config.cluster)
    images, extra = config.cluster.images, {}
    if isinstance(settings, TrainingStageConfig):
        environment |= _rank_variables(gpus_of(config.cluster, settings), settings, first)
        if (secret := config.cluster.tracking_secret) is not None:
            # Trainers, and nobody else, are told of the trackers that they report to.
            extra = {"envFrom": [{"secretRef": {"name": secret}}]}
    image = images.trainer if step.stage in _TRAINS and images.trainer else images.worker
    command = ["python", "-m", "jobs", step.stage.job_name, *arguments]
    keeps = ["--attempt", str(attempt.number)]
    if shard is not None and shard.number is not None:
        keeps += ["--worker", str(shard.number)]
    keeps.append(f"runs/{config.name}/iteration-{step.iteration:02d}/{step.stage.value}")
    return Program(image, command, settings, environment, extra, keeps=keeps)


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
