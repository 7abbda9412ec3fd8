"""When a run gives its GPUs back: what it holds is of no use while another of its pods finds no node. Pure.

Two runs whose servers have taken all GPUs would wait for each other's for ever: both trainers stay Pending. Between
runs of one namespace the younger makes way at once, and comes back when the pods of the older have nodes. For others,
which it cannot see, a run that has held GPUs in vain for `cluster.patience` deletes its servers, lets them go on, and
tries again later. How long it holds and pauses differs from run to run, or all of them would give back and come back
together. A gang of `controller.gangs` holds nothing before it has everything.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from scope_selfplay.controller.api import ObjectKind
from scope_selfplay.controller.attempts import AttemptLedger, pause_after
from scope_selfplay.controller.manifests import Component, RunStage, gpus_of, shard_name
from scope_selfplay.controller.observed import ObservedJob, ObservedServer
from scope_selfplay.controller.plan_parts import PlanPart, Situation, warn
from scope_selfplay.controller.servers import settings_of
from scope_selfplay.controller.stage_jobs import stage_settings

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
        deletions = _deletions(now, servers, active)
        told = warn("MadeWay", text) if deletions.actions else PlanPart(message=text)
        return GivingBack(_without(ledger, step, active), looked + deletions + told, pauses=True)
    found = _give_back_to_all(now, ledger, step, servers, active)
    return found._replace(part=looked + found.part)


def _whom_to_make_way_for(now: Situation) -> tuple[str | None, PlanPart]:
    """The oldest run of the namespace that waits for nodes; nobody once that took `cluster.patience`, because what it
    waits for may be something else. The clock runs on for as long as it waits, or way would be made again at once."""
    cluster, own = now.context.config.cluster, (now.observed.since or "~", now.context.config.name)
    older = next((run for run in now.observed.others if run.waits and (run.since, run.name) < own), None)
    if older is None or cluster.tiny or now.is_gang:
        return None, PlanPart()
    is_over, looked = now.has_waited(f"way/{older.name}", cluster.patience)
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
    patience = now.context.config.cluster.patience * _share(now, times)
    is_over, looked = now.has_waited(f"holding/{times}", patience)
    if not is_over:
        return GivingBack(ledger, looked, pauses=False)
    text = f"{step.name} found no room for all its pods within {patience:.0f} s; gives its GPUs back and tries later"
    released = looked + warn("GaveBack", text) + _deletions(now, servers, active)
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


def _deletions(now: Situation, servers: Sequence[ObservedServer], active: Sequence[ObservedJob]) -> PlanPart:
    part = PlanPart()
    for server in servers:
        part += now.delete(ObjectKind.DEPLOYMENT, server)
    for job in active:
        part += now.delete(job.kind, job)
    return part


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
    if (trains or now.is_gang) and any(pod.node and pod.holds_node for job in active for pod in job.pods):
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
