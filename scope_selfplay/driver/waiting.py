"""What a Job waits for: the GPUs of earlier pods, servers that answer, a node for its own pods. Pure.

A server that is late may miss a volume, an image or a node that comes back. So it is deleted and made again, after
pauses that grow, for as long as it takes; only a program that says that it was given wrong input (64) ends the run.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import BODY_HASH, Component, RunStage, gpus_of, shard_name
from scope_selfplay.cluster.servers import STARTUP, Server, server_deployment, server_service, settings_of
from scope_selfplay.cluster.stages import nodes_of, rank_service, stage_settings
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.attempts import AttemptLedger, GivenUp, pause_after
from scope_selfplay.driver.observed import ObservedJob, ObservedPod, ObservedServer
from scope_selfplay.driver.parts import Apply, ControllerEvent, PlanPart, RunEnd, Situation, warn

PATIENCE = 900.0
"""Seconds for which a run holds GPUs while another of its pods finds no node."""
_SERVED = (Component.JUDGE, Component.SOLVER, Component.CHALLENGER, Component.RETRIEVER)


class GivingBack(NamedTuple):
    ledger: AttemptLedger
    part: PlanPart
    pauses: bool
    """Whether nothing else may be done now."""


def give_back(
    now: Situation, ledger: AttemptLedger, step: RunStage, active: Sequence[ObservedJob]
) -> GivingBack:
    """What is to be deleted for the sake of others, and whether the run pauses since it did so."""
    if any(job.is_placed for job in active):
        return GivingBack(ledger.model_copy(update={"given_back": 0}), PlanPart(), pauses=False)
    servers = [server for server in now.observed.servers if now.owns(server)]
    older, looked = _whom_to_make_way_for(now)
    if older is not None:
        text = f"makes way for {older}, which came first and waits for a node"
        deletions = now.delete(*servers, *active)
        told = warn("MadeWay", text) if deletions.actions else PlanPart(message=text)
        return GivingBack(_without(ledger, step, active), looked + deletions + told, pauses=True)
    found = _give_back_to_all(now, ledger, step, servers, active)
    return found._replace(part=looked + found.part)


def _whom_to_make_way_for(now: Situation) -> tuple[str | None, PlanPart]:
    """The oldest run of the namespace that waits for nodes; nobody once that took `PATIENCE`, because what it
    waits for may be something else. The clock runs on for as long as it waits, or way would be made again at once."""
    cluster, own = now.context.config.cluster, (now.observed.since or "~", now.context.config.name)
    older = next((run for run in now.observed.others if run.waits and (run.since, run.name) < own), None)
    if older is None or cluster.tiny:
        return None, PlanPart()
    is_over, looked = now.has_waited(f"way/{older.name}", PATIENCE)
    return None if is_over else older.name, looked


def _give_back_to_all(
    now: Situation,
    ledger: AttemptLedger,
    step: RunStage,
    servers: Sequence[ObservedServer],
    active: Sequence[ObservedJob],
) -> GivingBack:
    """To runs that cannot be seen, where GPUs were held in vain for too long."""
    times = ledger.given_back
    if not servers and not active:
        return _pause(now, ledger)
    if not _holds_gpus(now, step, servers, active) or not _lacks_room(servers, active):
        return GivingBack(ledger, PlanPart(), pauses=False)
    patience = PATIENCE * _share(now, times)
    is_over, looked = now.has_waited(f"holding/{times}", patience)
    if not is_over:
        return GivingBack(ledger, looked, pauses=False)
    text = f"{step.name} found no room for all its pods within {patience:.0f} s; gives its GPUs back and tries later"
    released = looked + warn("GaveBack", text) + now.delete(*servers, *active)
    after = _without(ledger, step, active).model_copy(
        update={"given_back": times + 1, "beside": _placed(now)}
    )
    return GivingBack(after, released, pauses=True)


def _pause(now: Situation, ledger: AttemptLedger) -> GivingBack:
    """Nothing is held; it tries again after a while, or as soon as runs of the namespace hold less than then."""
    times = ledger.given_back
    pause = pause_after(times) * _share(now, times)
    is_over, looked = now.has_waited(f"given-back/{times}", pause)
    if times == 0 or is_over or _placed(now) < ledger.beside:
        return GivingBack(ledger, PlanPart(), pauses=False)
    text = f"gave its GPUs back, which others wait for; trying again within {pause:.0f} s"
    return GivingBack(ledger, looked + PlanPart(message=text), pauses=True)


def _placed(now: Situation) -> int:
    """Pods of other runs that have nodes."""
    return sum(run.placed for run in now.observed.others)


def _without(ledger: AttemptLedger, step: RunStage, active: Sequence[ObservedJob]) -> AttemptLedger:
    """The record without these Jobs: they had no node, so their attempts are over and count as none."""
    histories = dict(ledger.histories)
    for job in active:
        name = shard_name(step, job.shard)
        over = {"latest": job.attempt, "counted": job.attempt}
        histories[name] = ledger.history(name).model_copy(update=over)
    return ledger.model_copy(update={"histories": histories})


def _share(now: Situation, times: int) -> float:
    """Between 1 and 2, the same whenever this run asks for the same time."""
    return 1 + Random(f"{now.context.owner.uid}/{times}").random()


def _holds_gpus(
    now: Situation, step: RunStage, servers: Sequence[ObservedServer], active: Sequence[ObservedJob]
) -> bool:
    config = now.context.config
    trains = gpus_of(config.cluster, stage_settings(config, step.stage)) > 0
    if trains and any(pod.node and pod.holds_node for job in active for pod in job.pods):
        return True
    with_gpus = [part.value for part in _SERVED if gpus_of(config.cluster, settings_of(config, part))]
    return any(
        pod.node and pod.holds_node
        for server in servers
        if server.component in with_gpus
        for pod in server.pods
    )


def _lacks_room(servers: Sequence[ObservedServer], active: Sequence[ObservedJob]) -> bool:
    """Whether a pod has no node, or is not even made: a quota, or a queue that admits it later."""
    pods = [pod for server in servers for pod in server.pods] + [pod for job in active for pod in job.pods]
    return (
        any(pod.unscheduled is not None and not pod.ending for pod in pods)
        or any(server.problem is not None for server in servers)
        or any(not job.pods for job in active)
    )


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
    if nodes_of(context.config, step.stage) > 1:
        service = rank_service(context, step)
        decision += _apply(ObjectKind.SERVICE, service, services.get(service["metadata"]["name"]))
    return decision


def _apply(kind: ObjectKind, body: Body, found: str | None) -> PlanPart:
    if found == body["metadata"]["annotations"][BODY_HASH]:
        return PlanPart()
    return PlanPart((Apply(kind, body),))


def late_servers(now: Situation, servers: Sequence[Server]) -> list[Server]:
    """Those of a stage's servers that do not answer now, or are not there."""
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
        going = now.delete(found)
        return given_up, going + PlanPart(message=f"waiting until {found.name} is deleted")
    decision = why_server_waits(now, found)
    refused = next((pod for pod in found.pods if pod.exit_code == ExitCode.USER), None)
    if refused is not None:
        why = f"{found.name}: {refused.message or 'ended with exit 64; see its log'}"
        return given_up, decision + PlanPart(end=RunEnd(ExitCode.USER, why))
    if found.problem is not None or any(pod.unscheduled for pod in found.pods):
        return given_up, decision
    is_late, looked = now.has_waited(f"startup/{found.uid}/{found.body_hash}", STARTUP)
    decision += looked
    if not is_late:
        return given_up, decision
    times = 1 if given_up is None else given_up.times + 1
    last = next((pod.message or pod.stuck for pod in found.pods if pod.message or pod.stuck), "no message")
    late = (
        f"{found.name} did not answer within {STARTUP} s ({last}); it is deleted, and made again after "
        f"{pause_after(times):.0f} s"
    )
    decision += now.delete(found) + warn("ServerLate", late)
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
