"""One attempt of a stage as one JobSet, which a queue admits as a whole: its Job and every server that it needs. Pure.

Two runs that each hold half of the GPUs and wait for the rest cannot come about: Kueue unsuspends a JobSet when there
is room for all its pods, and what it holds goes when its stage ends. Servers are Jobs here, because a JobSet holds
nothing else; the stage's pod waits in an init container until all of them answer, while they start side by side.
Checked against JobSet's API v1alpha2 (0.8 or newer where a stage has shards, for `dependsOn`).
"""

from collections.abc import Sequence

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import (
    ATTEMPT,
    QUEUE,
    Body,
    ManifestContext,
    StageShard,
    job_name,
    labels_of,
    stamped,
)
from scope_selfplay.controller.servers import Server, server_deployment, settings_of
from scope_selfplay.controller.stage_jobs import (
    StageAttempt,
    component_of,
    nodes_of,
    shard_count,
    spec_hash,
    work_spec,
)
from scope_selfplay.errors import ConfigError

LONGEST_NAME = 20
"""Characters of a run's name: a Job of a JobSet is named after run, stage, attempt and its part, in 63 characters."""
_STAGE, _COLLECT = "stage", "collect"
_RESTARTS = 100_000
"""A container that is started again in place counts; a server that keeps ending is the controller's to give up."""

# A Job's pod that ends with 0 is done and never starts again, and a server is never done.
_SERVE = """\
import signal, subprocess, sys
server = subprocess.Popen(sys.argv[1:])
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: server.send_signal(number))
sys.exit(server.wait() or 75)
"""
_AWAIT = """\
import sys, time, urllib.request
end = time.monotonic() + float(sys.argv[1])
for url in sys.argv[2:]:
    while True:
        try:
            urllib.request.urlopen(url, timeout=5)
            break
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(print(f"{url} did not answer within {sys.argv[1]} s: {error}") or 75)
            time.sleep(2)
"""


def check_gang_name(config: RunConfig) -> None:
    """Raises ConfigError for a run whose Jobs' names a JobSet could not hold."""
    if config.cluster.gang is not None and len(config.name) > LONGEST_NAME:
        raise ConfigError(
            f"name: found {config.name!r}, {len(config.name)} characters; with cluster.gang at most {LONGEST_NAME}, "
            "because JobSet puts more behind it"
        )


def gang(context: ManifestContext, attempt: StageAttempt, servers: Sequence[Server]) -> Body:
    """The JobSet of one attempt; it succeeds with its stage, fails with any of its Jobs, and is never restarted."""
    config, step = context.config, attempt.step
    assert config.cluster.gang is not None, "asked for without a queue"
    name = job_name(config.name, step, attempt.number)
    labels = labels_of(config, component_of(step.stage)) | step.labels | {ATTEMPT: str(attempt.number)}
    work = _work(context, attempt, servers, labels)
    spec: Body = {
        # Kueue's webhook does the same; without it nothing may start apart.
        "suspend": True,
        "network": {"enableDNSHostnames": nodes_of(config, step.stage) > 1},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [work[-1]["name"]]},
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": config.cluster.keep,
        "replicatedJobs": [*(_server(context, server, attempt) for server in servers), *work],
    }
    queued = labels | {QUEUE: config.cluster.gang.queue}
    body = stamped(context, "JobSet", name, queued, spec, what=spec_hash(context, attempt))
    for owner in body["metadata"]["ownerReferences"]:
        # Older Kueue takes what a Job controls for a part of that Job, and never admits it on its own.
        del owner["controller"]
    return body


def jobs_of(body: Body) -> list[Body]:
    """The Jobs that a JobSet makes, each once, as the API has them; none of another object."""
    name = body["metadata"]["name"]
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{name}-{part['name']}-0", **part["template"]["metadata"]},
            "spec": part["template"]["spec"],
        }
        for part in body["spec"].get("replicatedJobs", ())
    ]


def _work(
    context: ManifestContext, attempt: StageAttempt, servers: Sequence[Server], labels: dict[str, str]
) -> list[Body]:
    """The stage's Job; of a stage with shards one Job with a pod for each, and the Job that collects behind it."""
    config, step = context.config, attempt.step
    name, shards = job_name(config.name, step, attempt.number), shard_count(config, step.stage)
    if shards == 1:
        spec = work_spec(context, attempt, servers, labels, first=f"{name}-{_STAGE}-0-0.{name}")
        return [_part(_STAGE, labels, _awaiting(config, spec, servers))]
    share, collect = (
        work_spec(context, StageAttempt(step, attempt.number, shard), servers, labels)
        for shard in (StageShard(0, shards), StageShard(None, shards))
    )
    share |= {"completions": shards, "parallelism": shards, "completionMode": "Indexed"}
    main = share["template"]["spec"]["containers"][0]
    every = {f"0/{shards}": f"$(JOB_COMPLETION_INDEX)/{shards}"}
    main["command"] = [every.get(word, word) for word in main["command"]]
    after = {"dependsOn": [{"name": _STAGE, "status": "Complete"}]}
    return [
        _part(_STAGE, labels, _awaiting(config, share, servers)),
        _part(_COLLECT, labels, collect) | after,
    ]


def _server(context: ManifestContext, server: Server, attempt: StageAttempt) -> Body:
    """The pod of a server's Deployment as a Job that never completes; its Service finds it by the same labels."""
    deployment = server_deployment(context, server)
    labels = deployment["metadata"]["labels"] | attempt.step.labels | {ATTEMPT: str(attempt.number)}
    template = deployment["spec"]["template"]
    template["metadata"]["labels"] |= attempt.step.labels
    template["spec"]["restartPolicy"] = "OnFailure"
    container = template["spec"]["containers"][0]
    container["command"] = ["python3", "-c", _SERVE, *container["command"]]
    name = f"{server.component}-{server.replica}" if server.replica else server.component.value
    return _part(name, labels, {"backoffLimit": _RESTARTS, "template": template})


def _part(name: str, labels: dict[str, str], spec: Body) -> Body:
    each = {"completions": 1, "parallelism": 1, "completionMode": "NonIndexed"} | spec
    return {"name": name, "replicas": 1, "template": {"metadata": {"labels": dict(labels)}, "spec": each}}


def _awaiting(config: RunConfig, spec: Body, servers: Sequence[Server]) -> Body:
    """The pods begin when every server answers, or end with 75."""
    pod = spec["template"]["spec"]
    main = pod["containers"][0]
    longest = max((settings_of(config, server.component).startup for server in servers), default=0)
    urls = [f"{server.url}/health" for server in servers]
    amounts = {"cpu": "100m", "memory": "128Mi"}
    waiting = {
        "name": "await-servers",
        "image": main["image"],
        "command": ["python3", "-c", _AWAIT, str(longest), *urls],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": main["securityContext"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if urls:
        pod["initContainers"] = [*pod.get("initContainers", []), waiting]
    return spec
