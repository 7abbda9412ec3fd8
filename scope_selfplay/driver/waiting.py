"""What a Job waits for: the GPUs of earlier pods, servers that answer, a node for its own pods.

A server that is late may miss a volume, an image or a node that comes back. So it is deleted and made again, after
pauses that grow, for as long as it takes; only a program that says that it was given wrong input (64) ends the run.
"""

from collections.abc import Sequence
from random import Random

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import Component, Label, RunStage, gpus_of, shard_name
from scope_selfplay.cluster.stages import (
    STARTUP,
    Server,
    nodes_of,
    rank_service,
    server_deployment,
    server_service,
    settings_of,
    stage_settings,
)
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.attempts import GivenUp, pause_after
from scope_selfplay.driver.observed import ObservedJob, ObservedPod, ObservedServer
from scope_selfplay.driver.parts import Apply, Plan, RunEnd

_LONGEST_YIELD = 900.0
"""Seconds for which a run yields to an older one."""
_SERVED = (Component.JUDGE, Component.SOLVER, Component.CHALLENGER, Component.RETRIEVER)


def give_back(plan: Plan, step: RunStage, active: Sequence[ObservedJob]) -> bool:
    """Delete what others wait for; whether the run pauses since it did so, and nothing else may be done now."""
    if any(job.is_placed for job in active):
        plan.record(given_back=0)
        return False
    servers = [server for server in plan.observed.servers if plan.owns(server)]
    older = _whom_to_make_way_for(plan)
    if older is None:
        return _give_back_to_all(plan, step, servers, active)
    plan.message = f"makes way for {older}, which came first and waits for a node"
    if plan.delete(*servers, *active):
        plan.tell("MadeWay", plan.message, warning=True)
    _forget(plan, step, active)
    return True


def _whom_to_make_way_for(plan: Plan) -> str | None:
    """The oldest run of the namespace that waits for nodes; nobody once that took `_LONGEST_YIELD`, because what it
    waits for may be something else. The clock runs on for as long as it waits, or way would be made again at once."""
    cluster, own = plan.context.config.cluster, (plan.observed.since or "~", plan.context.config.name)
    older = next((run for run in plan.observed.others if run.waits and (run.since, run.name) < own), None)
    if older is None or cluster.tiny or plan.has_waited(f"way/{older.name}", _LONGEST_YIELD):
        return None
    return older.name


def _give_back_to_all(
    plan: Plan, step: RunStage, servers: Sequence[ObservedServer], active: Sequence[ObservedJob]
) -> bool:
    """To runs that cannot be seen, where GPUs were held in vain for too long."""
    times = plan.ledger.given_back
    if not servers and not active:
        return _pauses(plan)
    if not _holds_gpus(plan, step, servers, active) or not _lacks_room(servers, active):
        return False
    patience = plan.context.config.cluster.patience * _share(plan, times)
    if not plan.has_waited(f"holding/{times}", patience):
        return False
    text = f"{step.name} found no room for all its pods within {patience:.0f} s; gives its GPUs back and tries later"
    plan.warn("GaveBack", text)
    plan.delete(*servers, *active)
    _forget(plan, step, active)
    plan.record(given_back=times + 1, beside=_placed(plan))
    return True


def _pauses(plan: Plan) -> bool:
    """Nothing is held; it tries again after a while, or as soon as runs of the namespace hold less than then."""
    times = plan.ledger.given_back
    pause = pause_after(times) * _share(plan, times)
    is_over = plan.has_waited(f"given-back/{times}", pause)
    if times == 0 or is_over or _placed(plan) < plan.ledger.beside:
        return False
    plan.message = f"gave its GPUs back, which others wait for; trying again within {pause:.0f} s"
    return True


def _placed(plan: Plan) -> int:
    """Pods of other runs that have nodes."""
    return sum(run.placed for run in plan.observed.others)


def _forget(plan: Plan, step: RunStage, active: Sequence[ObservedJob]) -> None:
    """These Jobs had no node: their attempts are over, and count as none."""
    histories = dict(plan.ledger.histories)
    for job in active:
        name = shard_name(step, job.shard)
        over = {"latest": job.attempt, "counted": job.attempt}
        histories[name] = plan.ledger.history(name).model_copy(update=over)
    plan.record(histories=histories)


def _share(plan: Plan, times: int) -> float:
    """Between 1 and 2, the same whenever this run asks for the same time."""
    return 1 + Random(f"{plan.context.owner.uid}/{times}").random()


def _holds_gpus(
    plan: Plan, step: RunStage, servers: Sequence[ObservedServer], active: Sequence[ObservedJob]
) -> bool:
    config = plan.context.config
    holding = [(stage_settings(config, step.stage), job.pods) for job in active]
    # An object may have lost its label, or been given another, by hand.
    known = [server for server in servers if server.component in _SERVED]
    holding += [(settings_of(config, Component(server.component)), server.pods) for server in known]
    return any(
        pod.node and pod.holds_node
        for settings, pods in holding
        if gpus_of(config.cluster, settings)
        for pod in pods
    )


def _lacks_room(servers: Sequence[ObservedServer], active: Sequence[ObservedJob]) -> bool:
    """Whether a pod has no node, or is not even made: a quota, or a queue that admits it later."""
    pods = [pod for found in (*servers, *active) for pod in found.pods]
    return (
        any(pod.unscheduled is not None and not pod.ending for pod in pods)
        or any(server.problem is not None for server in servers)
        or any(not job.pods for job in active)
    )


_EVENT_AFTER = 300.0
"""Seconds of waiting after which an Event says what is waited for."""


def earlier_pods(plan: Plan, servers: Sequence[Server]) -> list[ObservedPod]:
    """Pods of an earlier stage or attempt that still hold a node."""
    serving = {(server.name, server.step) for server in servers}
    return [
        pod
        for pod in plan.observed.pods
        if pod.holds_node
        and ((pod.job is not None and pod.step is not None) or pod.server is not None)
        and (pod.server, pod.step) not in serving
    ]


def wait_for_gpus(plan: Plan, step: RunStage, pods: Sequence[ObservedPod]) -> None:
    """Nothing starts while these pods hold GPUs; an Event says so after a while."""
    names = ", ".join(sorted(pod.name for pod in pods))
    _warn_late(plan, f"ending/{names}", "StillEnding", f"{_still_ending(pods)}; {step.name} waits")
    plan.message = f"waiting until {names} ended: {step.name} needs the GPUs"


def apply_servers(plan: Plan, step: RunStage, servers: Sequence[Server]) -> bool:
    """Make what is missing, and bring what differs up to date; between Jobs, so that no Job loses its judge.

    Whether a server is made or changed.
    """
    context, given_up, is_changed = plan.context, plan.ledger.given_up, False
    deployments = {found.name: found for found in plan.observed.servers}
    services = {found.name: found.body_hash for found in plan.observed.services}
    for server in servers:
        found, dropped = deployments.get(server.name), given_up.get(server.name)
        _apply(plan, ObjectKind.SERVICE, server_service(context, server), services.get(server.name))
        if dropped is not None and found is None:
            pause = pause_after(dropped.times)
            if not plan.has_waited(f"pause/{server.name}/{dropped.times}", pause):
                plan.message = f"{server.name} did not answer in time; it is made again within {pause:.0f} s"
                continue
        if dropped is None or found is None or found.uid != dropped.uid:
            deployment = server_deployment(context, server)
            applied = _apply(plan, ObjectKind.DEPLOYMENT, deployment, found.body_hash if found else None)
            is_changed = is_changed or applied
    if nodes_of(context.config, step.stage) > 1:
        service = rank_service(context, step)
        _apply(plan, ObjectKind.SERVICE, service, services.get(service["metadata"]["name"]))
    return is_changed


def _apply(plan: Plan, kind: ObjectKind, body: Body, found: str | None) -> bool:
    if found == body["metadata"]["annotations"][Label.BODY_HASH]:
        return False
    plan.actions.append(Apply(kind, body))
    return True


def late_servers(plan: Plan, servers: Sequence[Server]) -> list[Server]:
    """Those of a stage's servers that do not answer now, or are not there."""
    ready = {found.name for found in plan.observed.servers if found.ready}
    return [server for server in servers if server.name not in ready]


def check_late_servers(plan: Plan, late: Sequence[Server]) -> None:
    """What late servers wait for; one that waits for nothing is given up. Those that answer again are forgotten."""
    found, given_up = {server.name: server for server in plan.observed.servers}, plan.ledger.given_up
    kept = {server.name: given_up[server.name] for server in late if server.name in given_up}
    for name in (server.name for server in late if server.name in found):
        dropped = _check_late(plan, found[name], given_up.get(name))
        kept |= {name: dropped} if dropped is not None else {}
    plan.record(given_up=kept)


def _check_late(plan: Plan, found: ObservedServer, given_up: GivenUp | None) -> GivenUp | None:
    """A server without room or without a node is waited for; one that ended with 64 ends the run."""
    if given_up is not None and given_up.uid == found.uid:
        plan.delete(found)
        plan.message = f"waiting until {found.name} is deleted"
        return given_up
    why_server_waits(plan, found)
    refused = next((pod for pod in found.pods if pod.exit_code == ExitCode.USER), None)
    if refused is not None:
        why = f"{found.name}: {refused.message or 'ended with exit 64; see its log'}"
        plan.end = plan.end or RunEnd(ExitCode.USER, why)
        return given_up
    # The time of a server begins anew when its model has come.
    if found.problem is not None or any(pod.unscheduled or pod.initializes for pod in found.pods):
        return given_up
    if not plan.has_waited(f"startup/{found.uid}/{found.body_hash}", STARTUP):
        return given_up
    times = 1 if given_up is None else given_up.times + 1
    last = next((pod.message or pod.stuck for pod in found.pods if pod.message or pod.stuck), "no message")
    late = (
        f"{found.name} did not answer within {STARTUP} s ({last}); it is deleted, and made again after "
        f"{pause_after(times):.0f} s"
    )
    plan.delete(found)
    plan.warn("ServerLate", late)
    return GivenUp(uid=found.uid, times=times)


def why_job_waits(plan: Plan, job: ObservedJob) -> None:
    if job.suspended:
        _wait(
            plan, f"suspended/{job.uid}", "Queued", f"{job.name} waits for admission by {_queue(job.queue)}"
        )
        return
    for pod in job.pods:
        _why_pod_waits(plan, pod)
    if not job.pods and plan.has_waited(f"nopod/{job.uid}", _EVENT_AFTER):
        # The message is left to what is known about the Job's servers.
        plan.tell("NoPod", f"{job.name} has no pod for five minutes; a quota?", warning=True)


def why_server_waits(plan: Plan, server: ObservedServer) -> None:
    if server.problem is not None:
        plan.warn("NoPod", f"{server.name}: {server.problem}")
    for pod in server.pods:
        _why_pod_waits(plan, pod)


def _why_pod_waits(plan: Plan, pod: ObservedPod) -> None:
    if pod.ending:
        # From Kubernetes 1.31 on a Job has failed only when its pods have ended, also those on a lost node.
        _warn_late(plan, f"ending/{pod.name}", "StillEnding", _still_ending([pod]))
    elif pod.stuck is not None:
        said = f" ({pod.message})" if pod.message else ""
        plan.warn("PodStuck", f"{pod.name}: {pod.stuck}{said}")
    elif pod.queue:
        _wait(plan, f"pending/{pod.name}", "Queued", f"{pod.name} waits for admission by {_queue(pod.queue)}")
    elif pod.unscheduled is not None:
        _wait(plan, f"pending/{pod.name}", "Pending", f"{pod.name} waits for a node: {pod.unscheduled}")
    elif pod.starts:
        # The kubelet tells why in Events of the pod, which the controller has no right to read.
        waits = (
            f"{pod.name} has had a node for five minutes and does not start: a volume or a Secret is missing, "
            f"or an image is slow; `kubectl describe pod {pod.name}` says which"
        )
        _warn_late(plan, f"starting/{pod.name}", "NotStarting", waits)


def _queue(name: str) -> str:
    return f"queue {name}" if name else "its queue"


def _wait(plan: Plan, clock: str, reason: str, message: str) -> None:
    """A message at once, and its Event after five minutes."""
    plan.message = message
    _warn_late(plan, clock, reason, message)


def _warn_late(plan: Plan, clock: str, reason: str, message: str) -> None:
    """A message and its Event, once it has been true for five minutes."""
    if plan.has_waited(clock, _EVENT_AFTER):
        plan.warn(reason, message)


def _still_ending(pods: Sequence[ObservedPod]) -> str:
    names = ", ".join(sorted(pod.name for pod in pods))
    nodes = " ".join(sorted({pod.node for pod in pods if pod.node}))
    advice = f"; where the machine is gone for good, `kubectl delete node {nodes}`" if nodes else ""
    return f"{names} did not end within five minutes{advice}"
