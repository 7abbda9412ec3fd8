"""Pod templates of stages and servers, as plain dicts: Pod Security "restricted", fields of Kubernetes 1.20 only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scope_selfplay.config import ClusterConfig, PodConfig, RunConfig
from scope_selfplay.controller.names import PORT, Component
from scope_selfplay.controller.servers import KEY_VARIABLE, VOLUME, Server, settings_of

Body = dict[str, Any]

WORKER_ACCOUNT = "scope-worker"
CONFIG_FOLDER = "/etc/scope/run"
PROMPTS_FOLDER = "/etc/scope/prompts"

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


class Program(NamedTuple):
    """What one container runs."""

    image: str
    command: Sequence[str]
    settings: PodConfig
    environment: Mapping[str, str]
    extra: Body
    """Further fields of the container: ports, probes."""


def pod_template(
    config: RunConfig, program: Program, labels: dict[str, str], *, packs: Sequence[str]
) -> Body:
    """The template of a Job or a Deployment with one container; `packs` are the prompt packs to mount."""
    cluster = config.cluster
    volumes, mounts = _volumes(config, program.settings, packs)
    container: Body = {
        "name": "main",
        "image": program.image,
        "command": list(program.command),
        "env": [*_environment(program.environment), *_key(cluster)],
        "resources": _resources(cluster, program.settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
        # The last lines of the log become the message that a person reads in the status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **program.extra,
    }
    spec: Body = {
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT in every pod, which vLLM reads as its own.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": cluster.user,
            "runAsGroup": cluster.user,
            "fsGroup": cluster.user,
            # Else a volume with millions of files is walked through at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
        **_scheduling(cluster),
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def server_program(config: RunConfig, server: Server) -> Program:
    """How a server is started and asked whether it lives."""
    settings = settings_of(config, server.part)
    extra: Body = {
        # Server-side apply tells ports apart by number and protocol; older servers want both written out.
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {
            **_health(),
            "periodSeconds": 10,
            "failureThreshold": max(1, settings.startup // 10),
        },
        "readinessProbe": {**_health(), "periodSeconds": 10, "timeoutSeconds": 5},
    }
    if is_vllm(config, server.part):
        url = f"http://127.0.0.1:{PORT}/v1/completions"
        command = ["python3", "-c", _CANARY, url, served_name(config, server.part), str(settings.canary)]
        extra["livenessProbe"] = {
            "exec": {"command": command},
            "periodSeconds": 60,
            # Each look at /metrics may take 5 s.
            "timeoutSeconds": settings.canary + 15,
            "failureThreshold": 3,
        }
    else:
        extra["livenessProbe"] = {
            **_health(),
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        }
    environment = {}
    if server.part in (Component.SOLVER, Component.CHALLENGER) and not is_vllm(config, server.part):
        environment = {"OMP_NUM_THREADS": str(_whole_cores(settings.cpu))}
    command = _server_command(config, server)
    return Program(_server_image(config, server.part), command, settings, environment, extra)


def gpus_of(cluster: ClusterConfig, settings: PodConfig) -> int:
    return 0 if cluster.tiny else settings.gpus


def is_vllm(config: RunConfig, part: Component) -> bool:
    """Without a GPU there is no use in vLLM: the library's own servers take its place."""
    return part is not Component.RETRIEVER and gpus_of(config.cluster, settings_of(config, part)) > 0


def served_name(config: RunConfig, part: Component) -> str:
    """The name under which a server knows its model."""
    asked = config.judge.endpoint.model if part is Component.JUDGE else None
    return asked or part.value


def _server_command(config: RunConfig, server: Server) -> list[str]:
    settings = settings_of(config, server.part)
    address = ["--host", "0.0.0.0", "--port", str(PORT)]
    key = [KEY_VARIABLE] if config.cluster.key_secret else []
    if is_vllm(config, server.part):
        name, width = served_name(config, server.part), str(settings.gpus)
        known = ["--served-model-name", name, "--tensor-parallel-size", width]
        return ["vllm", "serve", server.model, *address, *known, *settings.args]
    match server.part:
        case Component.RETRIEVER:
            command = ["scope", "serve-retriever", server.model]
            return [*command, *address, *(f"--token-env={each}" for each in key), *settings.args]
        case Component.JUDGE:
            command = ["scope", "serve-judge", "--config", f"{CONFIG_FOLDER}/run.yaml"]
        case _:
            command = ["scope", "serve-model", server.model]
    return [*command, *address, *(f"--api-key-env={each}" for each in key), *settings.args]


def _server_image(config: RunConfig, part: Component) -> str:
    images = config.cluster.images
    if part is Component.RETRIEVER:
        return images.retriever or images.worker
    return images.server or images.worker if is_vllm(config, part) else images.worker


def _whole_cores(cpu: str) -> int:
    return max(1, int(cpu.removesuffix("m")) // 1000 if cpu.endswith("m") else int(float(cpu)))


def _health() -> Body:
    return {"httpGet": {"path": "/health", "port": "http"}}


def _environment(own: Mapping[str, str]) -> list[Body]:
    values = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # The root is read-only and the user has no entry in /etc/passwd: caches need a place, torch needs a name.
        "HOME": "/tmp",
        "USER": "scope",
        "XDG_CACHE_HOME": "/tmp/cache",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/cache/inductor",
        "TRITON_CACHE_DIR": "/tmp/cache/triton",
        **own,
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _key(cluster: ClusterConfig) -> list[Body]:
    """The API key of the servers under the name that vLLM reads; stages send it under the same name."""
    if cluster.key_secret is None:
        return []
    source = {"secretKeyRef": {"name": cluster.key_secret, "key": "token"}}
    return [{"name": KEY_VARIABLE, "valueFrom": source}]


def _resources(cluster: ClusterConfig, settings: PodConfig) -> Body:
    amounts = {"cpu": settings.cpu, "memory": settings.memory}
    if gpus_of(cluster, settings):
        amounts[cluster.gpu_resource] = str(settings.gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def _volumes(config: RunConfig, settings: PodConfig, packs: Sequence[str]) -> tuple[list[Body], list[Body]]:
    claim = {"claimName": config.cluster.volume_claim}
    volumes: list[Body] = [
        {"name": "data", "persistentVolumeClaim": claim},
        {"name": "tmp", "emptyDir": {}},
        {"name": "run", "configMap": {"name": f"{config.name}-config"}},
    ]
    mounts: list[Body] = [
        {"name": "data", "mountPath": VOLUME},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "run", "mountPath": CONFIG_FOLDER, "readOnly": True},
    ]
    for pack in packs:
        volumes.append({"name": f"prompts-{pack}", "configMap": {"name": f"prompts-{pack}"}})
        path = f"{PROMPTS_FOLDER}/{pack}"
        mounts.append({"name": f"prompts-{pack}", "mountPath": path, "readOnly": True})
    for each in config.cluster.volumes:
        volumes.append({"name": each.name, **each.source})
        mounts.append({"name": each.name, "mountPath": each.path, "readOnly": True})
    if gpus_of(config.cluster, settings):
        # NCCL and the processes of one engine share memory there; a container's own /dev/shm has 64 MiB.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


def _scheduling(cluster: ClusterConfig) -> Body:
    spec: Body = {}
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        spec["tolerations"] = [
            {name: value for name, value in each.model_dump().items() if value}
            for each in cluster.tolerations
        ]
    if cluster.priority_class:
        spec["priorityClassName"] = cluster.priority_class
    if cluster.pull_secret:
        spec["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    return spec
