"""Which servers a stage needs beside it, how they are run, and how the stage's Job finds them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.config import RunConfig
from scope_selfplay.config.cluster import PolicyServerConfig, ServerConfig
from scope_selfplay.controller.compile_caches import cache_mount
from scope_selfplay.controller.manifests import (
    CONFIG_FOLDER,
    KEY_VARIABLE,
    PORT,
    RUN,
    RUNS,
    SERVER,
    Body,
    Component,
    ManifestContext,
    Program,
    RunStage,
    gpus_of,
    labels_of,
    pod_template,
    server_name,
    stamped,
)
from scope_selfplay.controller.parallelism import parallelism_of
from scope_selfplay.schedule import (
    PolicyVersion,
    challenger_of,
    is_challenger_trained,
    promoted_solver,
    solver_of,
)
from scope_selfplay.store import RunFolder, Stage

_PARTNERS = (Component.SOLVER, Component.CHALLENGER)
_GRACE = 30
"""Seconds between SIGTERM and SIGKILL of a server."""
_RETRIEVER_GRACE = 75
"""It answers what has arrived within its deadline, 60 s, and needs up to ten seconds more to end."""

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
    replica: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.name}:{PORT}"


def servers_of(config: RunConfig, step: RunStage, promoted: Sequence[bool]) -> tuple[Server, ...]:
    """The servers of one stage; `promoted[t]` says whether S_t was promoted, for every t before the iteration.

    A and B meet the Solver that was promoted last, the same servers, C none, D only the Solver that was just trained.
    """
    solver = promoted_solver(step.iteration - 1, lambda iteration: promoted[iteration])
    policies: dict[Component, PolicyVersion] = {}
    match step.stage:
        case Stage.CHALLENGER:
            policies[Component.SOLVER] = solver
        case Stage.TASKS:
            policies[Component.CHALLENGER] = challenger_of(config, step.iteration)
            if step.iteration > 0:
                policies[Component.SOLVER] = solver
        case Stage.COMPARE:
            policies[Component.SOLVER] = solver_of(step.iteration)
        case Stage.SOLVER:
            pass
    folder = RunFolder(Path(RUNS) / config.name)
    models: list[tuple[Component, str, RunStage | None]] = [
        # These two serve from the first stage to the last.
        (Component.JUDGE, config.cluster.judge.model, None),
        (Component.RETRIEVER, config.cluster.retriever.index, None),
    ]
    for component, policy in policies.items():
        model = str(policy.checkpoint(folder) or config.model.path)
        models.append((component, model, _first_served(config, step, component)))
    return tuple(
        Server(component, server_name(config.name, component, first, replica), model, first, replica)
        for component, model, first in models
        if settings_of(config, component).serve
        for replica in range(replicas_of(config, component))
    )


def _first_served(config: RunConfig, step: RunStage, component: Component) -> RunStage:
    """The Solver of B is that of A, where the iteration has one: its servers go on."""
    is_kept = component is Component.SOLVER and step.stage is Stage.TASKS
    if is_kept and step.iteration > 0 and is_challenger_trained(config, step.iteration):
        return RunStage(step.iteration, Stage.CHALLENGER)
    return step


def replicas_of(config: RunConfig, component: Component) -> int:
    """How many servers, each with GPUs of its own, serve the same."""
    settings = settings_of(config, component)
    return settings.replicas if isinstance(settings, PolicyServerConfig) else 1


def settings_of(config: RunConfig, component: Component) -> ServerConfig:
    found: ServerConfig = getattr(config.cluster, component.value)
    return found


def endpoint_settings(config: RunConfig, servers: Sequence[Server]) -> list[str]:
    """`key=value` overrides that tell a stage where its servers are, which variable holds their key, and which serve by
    priority."""
    groups = {
        Component.JUDGE: ("judge.endpoint", "base_url={}/v1"),
        Component.SOLVER: ("partners.solver", "base_url={}/v1"),
        Component.CHALLENGER: ("partners.challenger", "base_url={}/v1"),
        Component.RETRIEVER: ("search", "url={}"),
    }
    settings: list[str] = []
    for server in servers:
        if server.replica:
            continue
        group, address = groups[server.component]
        if others := [
            f"{each.url}/v1" for each in servers if each.replica and each.component is server.component
        ]:
            settings.append(f"{group}.replicas=[{', '.join(others)}]")
        settings.append(f"{group}.{address.format(server.url)}")
        if config.cluster.key_secret is not None:
            settings.append(f"{group}.api_key_env={KEY_VARIABLE}")
        if server.component in _PARTNERS and is_vllm(config, server.component):
            settings.append(f"{group}.priority=true")
    return settings


def server_deployment(context: ManifestContext, server: Server) -> Body:
    """One replica that is replaced only after it has gone: there are no GPUs for two."""
    config = context.config
    labels = _server_labels(config, server)
    template = pod_template(context, _server_program(config, server), labels)
    grace = _RETRIEVER_GRACE if server.component is Component.RETRIEVER else _GRACE
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": grace}
    for mount in template["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] == "data":
            # A server reads models and indexes; it writes nothing there.
            mount["readOnly"] = True
    if is_vllm(config, server.component):
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        mounts.append(cache_mount(config, server.component, server.replica))
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": {RUN: config.name, SERVER: server.name}},
        "template": template,
    }
    return stamped(context, "Deployment", server.name, labels, spec)


def server_service(context: ManifestContext, server: Server) -> Body:
    spec = {
        "selector": {RUN: context.config.name, SERVER: server.name},
        "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    labels = _server_labels(context.config, server)
    return stamped(context, "Service", server.name, labels, spec)


def _server_program(config: RunConfig, server: Server) -> Program:
    """How a server is started and asked whether it lives."""
    settings, images = settings_of(config, server.component), config.cluster.images
    liveness: Body = {**_health(), "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3}
    image, environment = images.worker, {}
    if server.component is Component.RETRIEVER:
        image = images.retriever or images.worker
    elif is_vllm(config, server.component):
        image = images.server or images.worker
        url = f"http://127.0.0.1:{PORT}/v1/completions"
        command = ["python3", "-c", _CANARY, url, served_name(config, server.component), str(settings.canary)]
        # Each look at /metrics may take 5 s.
        times = {"periodSeconds": 60, "timeoutSeconds": settings.canary + 15, "failureThreshold": 3}
        liveness = {"exec": {"command": command}, **times}
    elif server.component is not Component.JUDGE:
        cores = settings.cpu.removesuffix("m")
        whole_cores = int(cores) // 1000 if settings.cpu.endswith("m") else int(float(cores))
        environment = {"OMP_NUM_THREADS": str(max(1, whole_cores))}
    extra: Body = {
        # Server-side apply tells ports apart by number and protocol; older servers want both written out.
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {
            **_health(),
            "periodSeconds": 10,
            "failureThreshold": max(1, settings.startup // 10),
        },
        "readinessProbe": {**_health(), "periodSeconds": 10, "timeoutSeconds": 5},
        "livenessProbe": liveness,
    }
    return Program(image, _server_command(config, server), settings, environment, extra)


def _health() -> Body:
    # A body of its own for each probe: YAML would show a shared one as an alias.
    return {"httpGet": {"path": "/health", "port": "http"}}


def is_vllm(config: RunConfig, component: Component) -> bool:
    """Without a GPU there is no use in vLLM: the library's own servers take its place."""
    return (
        component is not Component.RETRIEVER and gpus_of(config.cluster, settings_of(config, component)) > 0
    )


def served_name(config: RunConfig, component: Component) -> str:
    """The name under which a server knows its model."""
    asked = config.judge.endpoint.model if component is Component.JUDGE else None
    return asked or component.value


def _server_command(config: RunConfig, server: Server) -> list[str]:
    settings = settings_of(config, server.component)
    address = ["--host", "0.0.0.0", "--port", str(PORT)]
    has_key = config.cluster.key_secret is not None
    if is_vllm(config, server.component):
        assert isinstance(settings, PolicyServerConfig), "the retriever is no vLLM"
        known = ["--served-model-name", served_name(config, server.component)]
        known += parallelism_of(config, server.component, settings).options
        if server.component in _PARTNERS:
            # Episodes send the number of their turn: the server's queue takes later ones first, as theirs does.
            known += ["--scheduling-policy", "priority"]
        return ["vllm", "serve", server.model, *address, *known, *settings.args]
    match server.component:
        case Component.RETRIEVER:
            command = ["scope", "serve-retriever", server.model]
            if (workers := config.cluster.retriever.workers) > 1 and not _names_workers(settings.args):
                command.append(f"--workers={workers}")
        case Component.JUDGE:
            command = ["scope", "serve-judge", "--config", f"{CONFIG_FOLDER}/run.yaml"]
        case _:
            model = config.model
            command = ["scope", "serve-model", server.model]
            command += ["--slots", str(model.slots), "--max-length", str(model.max_length)]
    # What a run's config says for one server comes last, and counts.
    option = "--token-env" if server.component is Component.RETRIEVER else "--api-key-env"
    return [*command, *address, *([f"{option}={KEY_VARIABLE}"] if has_key else []), *settings.args]


def _names_workers(arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == "--workers" for argument in arguments)


def _server_labels(config: RunConfig, server: Server) -> dict[str, str]:
    step = server.step.labels if server.step else {}
    return labels_of(config, server.component) | step | {SERVER: server.name}
