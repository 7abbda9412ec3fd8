"""What the controller does next: a pure function of what is wanted, what the API shows, and what is on the volume.

`next_actions` is called again and again with fresh observations (level-triggered): it needs no memory of what it
asked for before, so a controller may be killed anywhere. A stage is done when its manifest is on the volume, and
for no other reason. In each iteration:

    servers of other stages go -> their GPUs are free -> own servers -> they answer -> the Job -> its manifest

The rest of the answer is in `attempts` (how earlier attempts ended, and whether there is another one), `waiting`
(servers, GPUs, nodes) and `plan_parts` (the values that are added up here).
"""

from collections.abc import Mapping, Sequence

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import RunStage, shard_name
from scope_selfplay.cluster.servers import Server, servers_of
from scope_selfplay.cluster.stages import StageAttempt, nodes_of, rank_service, spec_hash, stage_job
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.attempts import (
    AttemptHistory,
    AttemptLedger,
    AttemptOutcome,
    pause_after,
    review_attempts,
    shards_in_use,
)
from scope_selfplay.driver.observed import JobState, ObservedCluster, ObservedJob
from scope_selfplay.driver.parts import (
    Apply,
    ControllerEvent,
    Create,
    DesiredSteps,
    NextActions,
    PlanPart,
    RunEnd,
    Situation,
    VolumeState,
    stop_of,
    warn,
)
from scope_selfplay.driver.waiting import (
    apply_servers,
    check_late_servers,
    earlier_pods,
    give_back,
    late_servers,
    wait_for_gpus,
    why_job_waits,
    why_server_waits,
)

_TIME_TO_END = 120.0
"""Seconds in which a Job may end by itself after its manifest was published, so that its log is complete."""


def next_actions(
    wanted: DesiredSteps, observed: ObservedCluster, volume: VolumeState, waited: Mapping[str, float]
) -> NextActions:
    """What to write, create and delete situation, what to tell people, and whether the run has ended.

    `waited` has the seconds since a plan first named each of its `clocks`; a clock that a plan does not name
    starts again. Raises RecordError when the record of attempts cannot be read.
    """
    situation = Situation(wanted.context, observed, volume, waited)
    owner = wanted.context.owner.uid
    # A record that cannot be read is such a problem itself.
    ledger = AttemptLedger(owner=owner) if wanted.problem else AttemptLedger.read(observed.status, owner)
    last_iteration, stopped = stop_of(wanted.context.config, volume) or (wanted.context.config.iterations, "")
    steps = [step for step in wanted.steps if step.iteration <= last_iteration]
    step = next((step for step in steps if step not in volume.done), None)
    progress = f"{len(volume.done.intersection(steps))} of {len(steps)} stages done"
    decision = PlanPart()
    just_done = next((done for done in volume.done if done.name == observed.status.get("step")), None)
    if just_done is not None and just_done != step:
        decision = _event("StageDone", f"{just_done.name} is done; {progress}")
    if (end := _end_of_run(wanted, ledger, volume, steps, stopped)) is not None:
        decision += PlanPart(end=end)
    elif step is not None:
        if volume.room:
            decision += _event("LittleRoom", volume.room, warning=True)
        pursued, ledger = _advance_stage(situation, wanted.edited, ledger, step)
        decision += pursued
    if decision.end is not None:
        decision = _wind_down(situation, decision, decision.end, was_told=ledger.code is not None)
    status = _status(situation, ledger, decision, step, progress)
    return NextActions(status, decision.actions, decision.events, decision.end, decision.clocks)


def _end_of_run(
    wanted: DesiredSteps, ledger: AttemptLedger, volume: VolumeState, steps: Sequence[RunStage], stopped: str
) -> RunEnd | None:
    """How the run ends, whatever the cluster shows; None where there is a step to do."""
    if wanted.problem is not None:
        return wanted.problem
    if ledger.code is not None:
        return RunEnd(ledger.code, ledger.why)
    missing = next((step for step in wanted.before if step not in volume.done), None)
    if missing is not None:
        why = (
            f"iteration {missing.iteration} is not complete: its {missing.stage.job_name} has no manifest; "
            f"apply iteration-{max(1, missing.iteration):02d} first"
        )
        return RunEnd(ExitCode.USER, why)
    if not steps:
        why = stopped or "see `iterations` and `stop_after`"
        return RunEnd(ExitCode.USER, f"the run has no such iteration; {why}")
    if not volume.done.issuperset(steps):
        return None
    if wanted.edited:
        return _refused(wanted.edited)
    return RunEnd(ExitCode.DONE, stopped or "every stage is done")


def _advance_stage(
    situation: Situation, edited: Sequence[str], ledger: AttemptLedger, step: RunStage
) -> tuple[PlanPart, AttemptLedger]:
    """Work towards one step: remove what is in its way, then start its servers, then its Jobs."""
    config = situation.context.config
    histories, decision = review_attempts(situation, ledger, step)
    ledger = ledger.model_copy(update={"histories": histories})
    for name, history in histories.items():
        if (code := history.failure(config.cluster.retries)) is not None:
            return decision + PlanPart(end=RunEnd(code, f"{name}: {history.why}")), ledger
    servers = servers_of(config, step, situation.volume.promoted)
    decision += _remove_others(situation, step, servers)
    active = [job for job in situation.observed.jobs if job.step == step and job.state is JobState.ACTIVE]
    obstacle = _obstacle(situation, edited, active, servers)
    if edited and active:
        decision += _event("Edited", f"{', '.join(edited)} changed; nothing new starts", warning=True)
    if obstacle is not None:
        return decision + obstacle, ledger
    ledger, given_back, pauses = give_back(situation, ledger, step, active)
    decision += given_back
    if pauses:
        return decision, ledger
    if active:
        decision = _watch(situation, decision, active, servers)
        if edited:
            return decision, ledger
        return decision + _start_jobs(situation, histories, step, servers), ledger
    if in_the_way := earlier_pods(situation, servers):
        return decision + wait_for_gpus(situation, step, in_the_way), ledger
    return _serve_and_start(situation, decision, ledger, step, servers)


def _obstacle(
    situation: Situation, edited: Sequence[str], active: Sequence[ObservedJob], servers: Sequence[Server]
) -> PlanPart | None:
    """What keeps this controller from working on a step at all."""
    if edited and not active:
        return PlanPart(end=_refused(edited))
    # An object of this run that another controller's Job owns is neither adopted nor deleted.
    names = {server.name for server in servers}
    foreign = [f"Job {job.name}" for job in active if not situation.owns(job)]
    deployments = (found for found in situation.observed.servers if found.name in names)
    foreign += [f"Deployment {found.name}" for found in deployments if not situation.owns(found)]
    if foreign:
        return warn("ForeignObject", f"waiting for {foreign[0]}, which another controller owns")
    for job in active:
        computes = spec_hash(situation.context, StageAttempt(job.step, job.attempt, job.shard))
        if job.spec_hash != computes and not edited:
            why = f"{job.name} was made from other settings or prompts; delete it, or put them back"
            return PlanPart(end=RunEnd(ExitCode.USER, why))
    return None


def _remove_others(situation: Situation, step: RunStage, servers: Sequence[Server]) -> PlanPart:
    """Delete at once what this step does not need: servers, Services and Jobs of other stages."""
    keep = {(server.name, server.step) for server in servers}
    unused = [each for each in situation.observed.servers if (each.name, each.step) not in keep]
    if nodes_of(situation.context.config, step.stage) > 1:
        keep.add((rank_service(situation.context, step)["metadata"]["name"], step))
    left = [each for each in situation.observed.services if (each.name, each.step) not in keep]
    decision = situation.delete(*unused, *left)
    for job in situation.observed.jobs:
        if job.state is JobState.ACTIVE and job.step != step:
            decision += _end_job(situation, job)[1]
    return decision


def _watch(
    situation: Situation, decision: PlanPart, active: Sequence[ObservedJob], servers: Sequence[Server]
) -> PlanPart:
    """While Jobs run: what their pods and those of their servers wait for; how the Jobs end decides what follows."""
    late = [server.name for server in late_servers(situation, servers)]
    decision = sum((why_job_waits(situation, job) for job in active), decision)
    found = [server for server in situation.observed.servers if server.name in late]
    decision = sum((why_server_waits(situation, server) for server in found), decision)
    if decision.message:
        return decision
    running = f"running {', '.join(job.name for job in active)}"
    return decision + PlanPart(message="; ".join([running, *(f"{name} does not answer" for name in late)]))


def _serve_and_start(
    situation: Situation,
    decision: PlanPart,
    ledger: AttemptLedger,
    step: RunStage,
    servers: tuple[Server, ...],
) -> tuple[PlanPart, AttemptLedger]:
    """Bring the servers up to date, and start the Jobs once all servers answer."""
    applied = apply_servers(situation, step, servers, ledger.given_up)
    late = late_servers(situation, servers)
    given_up, checked = check_late_servers(situation, late, ledger.given_up)
    ledger = ledger.model_copy(update={"given_up": given_up})
    decision += applied + checked
    if late:
        waiting = f"waiting for {', '.join(server.name for server in late)} to answer"
        return decision if decision.message else decision + PlanPart(message=waiting), ledger
    if any(isinstance(action, Apply) and action.kind is ObjectKind.DEPLOYMENT for action in applied.actions):
        # These servers still answer from before the change: the Job is to meet the changed ones.
        return decision, ledger
    return decision + _start_jobs(situation, ledger.histories, step, servers), ledger


def _start_jobs(
    situation: Situation, histories: Mapping[str, AttemptHistory], step: RunStage, servers: tuple[Server, ...]
) -> PlanPart:
    *shards, collector = shards_in_use(situation, histories, step)
    missing = [shard for shard in shards if not histories[shard_name(step, shard)].done]
    decision = PlanPart()
    # With every shard made, or none to make, it is one Job's turn: the one that publishes the manifest.
    for shard in missing or [collector]:
        history = histories[shard_name(step, shard)]
        decision += _start_job(situation, history, StageAttempt(step, history.latest + 1, shard), servers)
    return decision


def _start_job(
    situation: Situation, history: AttemptHistory, attempt: StageAttempt, servers: tuple[Server, ...]
) -> PlanPart:
    """The next attempt, when the last one is over and its pause too."""
    if history.latest > history.counted:
        return PlanPart()
    decision, pause = PlanPart(), pause_after(history.free_failures)
    if pause:
        shard = shard_name(attempt.step, attempt.shard)
        is_over, decision = situation.has_waited(f"pause/{shard}/{history.counted}", pause)
        if not is_over:
            why = f"{shard}: {history.why}; trying again within {pause:.0f} s"
            return decision + PlanPart(message=why)
    body = stage_job(situation.context, attempt, servers)
    name = body["metadata"]["name"]
    decision += PlanPart((Create(body),), message=f"starting {name}")
    if history.outcome is not None:
        is_trouble = history.outcome is not AttemptOutcome.STOPPED
        decision += _event("Retry", f"{name}: {history.why}", warning=is_trouble)
    return decision + _event("StageStarted", name)


def _wind_down(situation: Situation, decision: PlanPart, end: RunEnd, *, was_told: bool) -> PlanPart:
    """Delete everything that holds a GPU, in place of the actions decided so far; then the run has ended."""
    is_good = end.code is ExitCode.DONE
    removed, message = PlanPart(), ""
    for job in situation.observed.jobs:
        if job.state is JobState.ACTIVE:
            may_end, ended = _end_job(situation, job)
            removed += ended if is_good else situation.delete(job)
            if is_good and may_end:
                message = f"{job.name} has published its manifest; waiting until it ended"
    removed += situation.delete(*situation.observed.servers, *situation.observed.services)
    told = () if is_good or was_told else (ControllerEvent("Failed", end.message, True),)
    clocks = decision.clocks | removed.clocks
    return PlanPart(removed.actions, decision.events + told, message, None if message else end, clocks)


def _end_job(situation: Situation, job: ObservedJob) -> tuple[bool, PlanPart]:
    """Whether a Job may end by itself, because it has published its manifest; the deletion of one that may not."""
    if job.step not in situation.volume.done:
        return False, situation.delete(job)
    is_late, looked = situation.has_waited(f"leaving/{job.uid}", _TIME_TO_END)
    return not is_late, looked + situation.delete(job) if is_late else looked


def _refused(edited: Sequence[str]) -> RunEnd:
    names = ", ".join(edited)
    why = f"changed since the run began: {names}; put it back, or begin a run of another name"
    return RunEnd(ExitCode.USER, why)


def _event(reason: str, message: str, *, warning: bool = False) -> PlanPart:
    return PlanPart(events=(ControllerEvent(reason, message, warning),))


def _status(
    situation: Situation, ledger: AttemptLedger, decision: PlanPart, step: RunStage | None, progress: str
) -> dict[str, str]:
    """Only what changes when something happens: no times and no counters of cycles, so that writes are few."""
    context, end = situation.context, decision.end
    active = sorted(job.name for job in situation.observed.jobs if job.state is JobState.ACTIVE)
    if end is not None and end.code in (ExitCode.USER, ExitCode.BUG):
        # Only a mistake and a bug are there to stay; what was down outside comes back.
        ledger = ledger.model_copy(update={"code": end.code, "why": end.message})
    status = {
        "phase": "Running" if end is None else "Done" if end.code is ExitCode.DONE else "Failed",
        "progress": progress,
        "message": end.message if end else decision.message,
        "jobs": " ".join(active),
        "fence": str(context.fence),
        "config": context.config.hash,
        "prompts": context.prompt_hash,
        "controller": context.owner.name,
    }
    if step is not None:
        status |= {"step": step.name, "iteration": str(step.iteration), "stage": step.stage.job_name}
    if situation.volume.training and end is None:
        status["training"] = situation.volume.training
    if situation.volume.room and end is None:
        status["volume"] = situation.volume.room
    if situation.volume.below_target:
        status["below_target"] = "; ".join(situation.volume.below_target)
    return status | {"ledger": ledger.model_dump_json()}
