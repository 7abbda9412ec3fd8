"""What a Job waits for: the GPUs of earlier pods, servers that answer, a node for its own pods. Pure.

A server that is late may miss a volume, an image or a node that comes back. So it is deleted and made again, after
pauses that grow, for as long as it takes; only a program that says that it was given wrong input (64) ends the run.
"""

from collections.abc import Mapping, Sequence

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.attempts import GivenUp, pause_after
from scope_selfplay.controller.manifests import BODY_HASH, RunStage
from scope_selfplay.controller.observed import ObservedJob, ObservedPod, ObservedServer
from scope_selfplay.controller.plan_parts import Apply, ControllerEvent, PlanPart, RunEnd, Situation, warn
from scope_selfplay.controller.servers import Server, server_deployment, server_service, settings_of
from scope_selfplay.controller.stage_jobs import nodes_of, rank_service
from scope_selfplay.errors import ExitCode

_EVENT_AFTER = 300.0
"""Seconds of waiting after which an Event says what is waited for."""


def earlier_pods(now: Situation, servers: Sequence[Server]) -> list[ObservedPod]:
    """Pods of an earlier stage or attempt that still hold a node."""
    serving = {(server.name, server.step) for server in servers}
    return [
        pod
        for pod in now.observed.pods
        if pod.holds_node
        and ((pod.job is not None and pod.step is not None) or pod.server is not None)
        and (pod.server, pod.step) not in serving
    ]


def wait_for_gpus(now: Situation, step: RunStage, pods: Sequence[ObservedPod]) -> PlanPart:
    """Nothing starts while these pods hold GPUs; an Event says so after a while."""
    names = ", ".join(sorted(pod.name for pod in pods))
    is_late, plan = now.has_waited(f"ending/{names}", _EVENT_AFTER)
    if is_late:
        plan += warn("StillEnding", f"{_still_ending(pods)}; {step.name} waits")
    return plan + PlanPart(message=f"waiting until {names} ended: {step.name} needs the GPUs")


def apply_servers(
    now: Situation, step: RunStage, servers: Sequence[Server], given_up: Mapping[str, GivenUp]
) -> PlanPart:
    """Make what is missing, and bring what differs up to date; between Jobs, so that no Job loses its judge."""
    context, decision = now.context, PlanPart()
    deployments = {found.name: found for found in now.observed.servers}
    services = {found.name: found.body_hash for found in now.observed.services}
    for server in servers:
        found, dropped = deployments.get(server.name), given_up.get(server.name)
        service = server_service(context, server)
        decision += _apply(ObjectKind.SERVICE, service, services.get(server.name))
        if now.is_gang:
            # The server itself is a Job of the stage's JobSet.
            continue
        if dropped is not None and found is None:
            pause = pause_after(dropped.times)
            is_over, looked = now.has_waited(f"pause/{server.name}/{dropped.times}", pause)
            decision += looked
            if not is_over:
                text = f"{server.name} did not answer in time; it is made again within {pause:.0f} s"
                decision += PlanPart(message=text)
                continue
        if dropped is None or found is None or found.uid != dropped.uid:
            deployment = server_deployment(context, server)
            decision += _apply(ObjectKind.DEPLOYMENT, deployment, found.body_hash if found else None)
    if nodes_of(context.config, step.stage) > 1 and not now.is_gang:
        service = rank_service(context, step)
        decision += _apply(ObjectKind.SERVICE, service, services.get(service["metadata"]["name"]))
    return decision


def _apply(kind: ObjectKind, body: Body, found: str | None) -> PlanPart:
    if found == body["metadata"]["annotations"][BODY_HASH]:
        return PlanPart()
    return PlanPart((Apply(kind, body),))


def late_servers(now: Situation, servers: Sequence[Server]) -> list[Server]:
    """Those of a stage's servers that do not answer now, or are not there; a gang's stage waits for its own."""
    if now.is_gang:
        return []
    ready = {found.name for found in now.observed.servers if found.ready}
    return [server for server in servers if server.name not in ready]


def check_late_servers(
    now: Situation, late: Sequence[Server], given_up: Mapping[str, GivenUp]
) -> tuple[dict[str, GivenUp], PlanPart]:
    """The servers that are given up by now, and what the others wait for; one that waits for nothing is given up."""
    found = {server.name: server for server in now.observed.servers}
    kept = {server.name: given_up[server.name] for server in late if server.name in given_up}
    decision = PlanPart()
    for server in late:
        if server.name in found:
            dropped, part = _check_late(now, server, found[server.name], given_up.get(server.name))
            decision += part
            if dropped is not None:
                kept[server.name] = dropped
    return kept, decision


def _check_late(
    now: Situation, server: Server, found: ObservedServer, given_up: GivenUp | None
) -> tuple[GivenUp | None, PlanPart]:
    """A server without room or without a node is waited for; one that ended with 64 ends the run."""
    if given_up is not None and given_up.uid == found.uid:
        going = now.delete(ObjectKind.DEPLOYMENT, found)
        return given_up, going + PlanPart(message=f"waiting until {found.name} is deleted")
    decision = why_server_waits(now, found)
    refused = next((pod for pod in found.pods if pod.exit_code == ExitCode.USER), None)
    if refused is not None:
        why = f"{found.name}: {refused.message or 'ended with exit 64; see its log'}"
        return given_up, decision + PlanPart(end=RunEnd(ExitCode.USER, why))
    if found.problem is not None or any(pod.unscheduled for pod in found.pods):
        return given_up, decision
    startup = settings_of(now.context.config, server.component).startup
    is_late, looked = now.has_waited(f"startup/{found.uid}/{found.body_hash}", startup)
    decision += looked
    if not is_late:
        return given_up, decision
    times = 1 if given_up is None else given_up.times + 1
    last = next((pod.message or pod.stuck for pod in found.pods if pod.message or pod.stuck), "no message")
    late = (
        f"{found.name} did not answer within {startup} s ({last}); it is deleted, and made again after "
        f"{pause_after(times):.0f} s"
    )
    decision += now.delete(ObjectKind.DEPLOYMENT, found) + warn("ServerLate", late)
    return GivenUp(uid=found.uid, times=times), decision


def why_job_waits(now: Situation, job: ObservedJob) -> PlanPart:
    if job.suspended:
        waits = f"{job.name} waits for admission by {_queue(job.queue)}"
        return PlanPart(message=waits) + _warn_late(now, f"suspended/{job.uid}", "Queued", waits)
    if job.pods:
        return sum((_why_pod_waits(now, pod) for pod in job.pods), PlanPart())
    is_late, looked = now.has_waited(f"nopod/{job.uid}", _EVENT_AFTER)
    # The message is left to what is known about the Job's servers.
    told = ControllerEvent("NoPod", f"{job.name} has no pod for five minutes; a quota?", True)
    return looked + PlanPart(events=(told,)) if is_late else looked


def refused_by_server(jobs: Sequence[ObservedJob]) -> RunEnd | None:
    """How the run ends where a server of a gang says that it was given wrong input: it would say so for ever."""
    pods = (pod for job in jobs for pod in job.pods if pod.server is not None)
    refused = next((pod for pod in pods if pod.exit_code == ExitCode.USER), None)
    if refused is None:
        return None
    return RunEnd(ExitCode.USER, f"{refused.server}: {refused.message or 'ended with exit 64; see its log'}")


def why_server_waits(now: Situation, server: ObservedServer) -> PlanPart:
    problem = warn("NoPod", f"{server.name}: {server.problem}") if server.problem is not None else PlanPart()
    return sum((_why_pod_waits(now, pod) for pod in server.pods), problem)


def _why_pod_waits(now: Situation, pod: ObservedPod) -> PlanPart:
    if pod.ending:
        # From Kubernetes 1.31 on a Job has failed only when its pods have ended, also those on a lost node.
        return _warn_late(now, f"ending/{pod.name}", "StillEnding", _still_ending([pod]))
    if pod.stuck is not None:
        said = f" ({pod.message})" if pod.message else ""
        return warn("PodStuck", f"{pod.name}: {pod.stuck}{said}")
    if pod.queue:
        waits = f"{pod.name} waits for admission by {_queue(pod.queue)}"
        return PlanPart(message=waits) + _warn_late(now, f"pending/{pod.name}", "Queued", waits)
    if pod.unscheduled is not None:
        waits = f"{pod.name} waits for a node: {pod.unscheduled}"
        return PlanPart(message=waits) + _warn_late(now, f"pending/{pod.name}", "Pending", waits)
    if pod.starts:
        # The kubelet tells why in Events of the pod, which the controller has no right to read.
        waits = (
            f"{pod.name} has had a node for five minutes and does not start: a volume or a Secret is missing, "
            f"or an image is slow; `kubectl describe pod {pod.name}` says which"
        )
        return _warn_late(now, f"starting/{pod.name}", "NotStarting", waits)
    return PlanPart()


def _queue(name: str) -> str:
    return f"queue {name}" if name else "its queue"


def _warn_late(now: Situation, clock: str, reason: str, message: str) -> PlanPart:
    """A message and its Event, once it has been true for five minutes."""
    is_late, looked = now.has_waited(clock, _EVENT_AFTER)
    return looked + warn(reason, message) if is_late else looked


def _still_ending(pods: Sequence[ObservedPod]) -> str:
    names = ", ".join(sorted(pod.name for pod in pods))
    nodes = " ".join(sorted({pod.node for pod in pods if pod.node}))
    advice = f"; where the machine is gone for good, `kubectl delete node {nodes}`" if nodes else ""
    return f"{names} did not end within five minutes{advice}"
