"""What the controller does next: a pure function of what is wanted, what the API shows, and what is on the volume.

`next_actions` is called again and again with fresh observations (level-triggered): it needs no memory of what it
asked for before, so a controller may be killed anywhere. A stage is done when its manifest is on the volume, and
for no other reason. In each iteration:

    servers of other stages go -> their GPUs are free -> own servers -> they answer -> the Job -> its manifest

Each question is answered by a function that writes into the `Plan`; those about servers, GPUs and nodes are in
`waiting`, what follows from a failure is in `attempts`.
"""

from collections.abc import Mapping, Sequence

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.pods import RunStage, StageShard, shard_name
from scope_selfplay.cluster.prepare import stage_pulls
from scope_selfplay.cluster.stages import (
    Server,
    StageAttempt,
    nodes_of,
    rank_service,
    servers_of,
    shard_count,
    spec_hash,
    stage_job,
    stage_shards,
)
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.attempts import (
    AttemptHistory,
    AttemptLedger,
    AttemptOutcome,
    outcome_of,
    outcome_of_pod,
    pause_after,
)
from scope_selfplay.driver.observed import JobState, ObservedCluster, ObservedJob
from scope_selfplay.driver.parts import (
    Adopt,
    Create,
    Delete,
    DesiredSteps,
    Plan,
    Publish,
    RunEnd,
    VolumeState,
    stop_of,
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

RETRIES = 3
"""Of a failed stage; outages, stops and evictions do not count."""
_TIME_TO_END = 120.0
"""Seconds in which a Job may end by itself after its manifest was published, so that its log is complete."""
_MANIFEST_DELAY = 60.0
"""Seconds in which a manifest must appear after its Job ended well: other nodes see a shared volume a little later."""


def next_actions(
    wanted: DesiredSteps, observed: ObservedCluster, volume: VolumeState, waited: Mapping[str, float]
) -> Plan:
    """What to write, create and delete now, what to tell people, and whether the run has ended.

    Raises RecordError when the record of attempts cannot be read.
    """
    owner = wanted.context.owner.uid
    others = [each.uid for each in (*observed.older, *observed.newer)]
    # A record that cannot be read is such a problem itself.
    status = {} if wanted.problem else observed.status
    plan = Plan(wanted, observed, volume, waited, AttemptLedger.read(status, owner, others))
    last_iteration, stopped = stop_of(wanted.context.config, volume) or (wanted.context.config.iterations, "")
    steps = [step for step in wanted.steps if step.iteration <= last_iteration]
    step = next((step for step in steps if step not in volume.done), None)
    progress = f"{len(volume.done.intersection(steps))} of {len(steps)} stages done"
    just_done = next((done for done in volume.done if done.name == observed.status.get("step")), None)
    if just_done is not None and just_done != step:
        plan.tell("StageDone", f"{just_done.name} is done; {progress}")
    is_taken_over = _takes_over(plan)
    plan.end = None if is_taken_over else _end_of_run(plan, steps, stopped)
    if plan.end is None and step is not None and not is_taken_over:
        if volume.room:
            plan.tell("LittleRoom", volume.room, warning=True)
        _advance_stage(plan, step)
    if plan.end is not None:
        _wind_down(plan, plan.end)
    plan.status = _status(plan, step, progress)
    return plan


def _takes_over(plan: Plan) -> bool:
    """Whether there is a Job whose place the controller's own takes: first what it made becomes this one's, then it
    goes, and nothing that runs notices. What a newer one made before it went away becomes this one's, too."""
    seen, others = plan.observed, {each.uid for each in (*plan.observed.older, *plan.observed.newer)}
    made = [each for each in (*seen.jobs, *seen.servers, *seen.services) if each.owner in others]
    gone = () if made else seen.older
    plan.actions += [Adopt(each.kind, each.name) for each in made]
    plan.actions += [Delete(ObjectKind.JOB, each.name, each.uid) for each in gone]
    plan.message = "takes over what runs" if plan.actions else ""
    return bool(plan.actions)


def _end_of_run(plan: Plan, steps: Sequence[RunStage], stopped: str) -> RunEnd | None:
    """How the run ends, whatever the cluster shows; None where there is a step to do."""
    wanted, done = plan.wanted, plan.volume.done
    if wanted.problem is not None:
        return wanted.problem
    if plan.ledger.code is not None:
        return RunEnd(plan.ledger.code, plan.ledger.why)
    missing = next((step for step in wanted.before if step not in done), None)
    if missing is not None:
        why = (
            f"iteration {missing.iteration} is not complete: its {missing.stage.job_name} has no manifest; "
            f"apply iteration-{max(1, missing.iteration):02d} first"
        )
        return RunEnd(ExitCode.USER, why)
    if not steps:
        why = stopped or "see `iterations` and `stop_after`"
        return RunEnd(ExitCode.USER, f"the run has no such iteration; {why}")
    if not done.issuperset(steps):
        return None
    return _refused(wanted) if wanted.edited else RunEnd(ExitCode.DONE, stopped or "every stage is done")


def _refused(wanted: DesiredSteps) -> RunEnd:
    names = ", ".join(wanted.edited)
    why = f"changed since the run began: {names}; put it back, or begin a run of another name"
    return RunEnd(ExitCode.USER, why)


def _advance_stage(plan: Plan, step: RunStage) -> None:
    """Work towards one step: remove what is in its way, then start its servers, then its Jobs."""
    config, edited = plan.context.config, plan.wanted.edited
    _review_attempts(plan, step)
    for name, history in plan.ledger.histories.items():
        if (code := history.failure(RETRIES)) is not None:
            plan.end = RunEnd(code, f"{name}: {history.why}")
            return
    servers = servers_of(config, step, plan.volume.promoted, plan.context.place)
    _remove_others(plan, step, servers)
    active = [job for job in plan.observed.jobs if job.step == step and job.state is JobState.ACTIVE]
    if edited and not active:
        plan.end = _refused(plan.wanted)
        return
    if edited:
        plan.tell("Edited", f"{', '.join(edited)} changed; nothing new starts", warning=True)
    if _is_of_others(plan, active, servers) or give_back(plan, step, active):
        return
    if active:
        _watch(plan, active, servers)
        if not edited:
            _start_jobs(plan, step, servers)
    elif in_the_way := earlier_pods(plan, servers):
        wait_for_gpus(plan, step, in_the_way)
    else:
        _serve_and_start(plan, step, servers)


def _is_of_others(plan: Plan, active: Sequence[ObservedJob], servers: Sequence[Server]) -> bool:
    """Whether another controller, or other settings, made what is there under this run's names."""
    # An object of this run that another controller's Job owns is neither adopted nor deleted.
    names = {server.name for server in servers}
    foreign = [f"Job {job.name}" for job in active if not plan.owns(job)]
    deployments = (found for found in plan.observed.servers if found.name in names)
    foreign += [f"Deployment {found.name}" for found in deployments if not plan.owns(found)]
    if foreign:
        plan.warn("ForeignObject", f"waiting for {foreign[0]}, which another controller owns")
        return True
    for job in active:
        computes = spec_hash(plan.context, StageAttempt(job.step, job.attempt, job.shard))
        if job.spec_hash != computes and not plan.wanted.edited:
            why = f"{job.name} was made from other settings or prompts; delete it, or put them back"
            plan.end = RunEnd(ExitCode.USER, why)
            return True
    return False


def _remove_others(plan: Plan, step: RunStage, servers: Sequence[Server]) -> None:
    """Delete at once what this step does not need: servers, Services and Jobs of other stages."""
    keep = {(server.name, server.step) for server in servers}
    unused = [each for each in plan.observed.servers if (each.name, each.step) not in keep]
    if nodes_of(plan.context.config, step.stage) > 1:
        keep.add((rank_service(plan.context, step)["metadata"]["name"], step))
    left = [each for each in plan.observed.services if (each.name, each.step) not in keep]
    plan.delete(*unused, *left)
    for job in plan.observed.jobs:
        if job.state is JobState.ACTIVE and job.step != step:
            _let_end(plan, job)


def _watch(plan: Plan, active: Sequence[ObservedJob], servers: Sequence[Server]) -> None:
    """While Jobs run: what their pods and those of their servers wait for; how the Jobs end decides what follows."""
    late = [server.name for server in late_servers(plan, servers)]
    for job in active:
        why_job_waits(plan, job)
    for found in plan.observed.servers:
        if found.name in late:
            why_server_waits(plan, found)
    running = f"running {', '.join(job.name for job in active)}"
    plan.message = plan.message or "; ".join([running, *(f"{name} does not answer" for name in late)])


def _serve_and_start(plan: Plan, step: RunStage, servers: tuple[Server, ...]) -> None:
    """Bring the servers up to date, and start the Jobs once all servers answer."""
    is_changed = apply_servers(plan, step, servers)
    late = late_servers(plan, servers)
    check_late_servers(plan, late)
    if late:
        names = ", ".join(server.name for server in late)
        plan.message = plan.message or f"waiting for {names} to answer"
    elif not is_changed:
        # Servers that were changed still answer from before: the Job is to meet them as they are to be.
        _start_jobs(plan, step, servers)


def _start_jobs(plan: Plan, step: RunStage, servers: tuple[Server, ...]) -> None:
    histories = plan.ledger.histories
    *shards, collector = _shards_in_use(plan, histories, step)
    missing = [shard for shard in shards if not histories[shard_name(step, shard)].done]
    # With every shard made, or none to make, it is one Job's turn: the one that publishes the manifest.
    for shard in missing or [collector]:
        history = histories[shard_name(step, shard)]
        # A number is given once, also where somebody has deleted what counted: the highest goes on from the last.
        number = max(history.latest, plan.volume.attempts) + 1
        _start_job(plan, history, StageAttempt(step, number, shard), servers)


def _start_job(
    plan: Plan, history: AttemptHistory, attempt: StageAttempt, servers: tuple[Server, ...]
) -> None:
    """The next attempt, when the last one is over and its pause too."""
    if history.latest > history.counted:
        return
    pause, shard = pause_after(history.free_failures), shard_name(attempt.step, attempt.shard)
    if pause and not plan.has_waited(f"pause/{shard}/{history.counted}", pause):
        plan.message = f"{shard}: {history.why}; trying again within {pause:.0f} s"
        return
    pulls = stage_pulls(plan.context.config, attempt.step, plan.volume.promoted)
    body = stage_job(plan.context, attempt, servers, pulls)
    name = body["metadata"]["name"]
    plan.actions.append(Create(body))
    plan.message = f"starting {name}"
    if history.outcome is not None:
        is_trouble = history.outcome is not AttemptOutcome.STOPPED
        plan.tell("Retry", f"{name}: {history.why}", warning=is_trouble)
    plan.tell("StageStarted", name)


def _review_attempts(plan: Plan, step: RunStage) -> None:
    """Bring the record of this step up to date; what other steps had is dropped, so that it never grows.

    Jobs of attempts that are over are deleted, and the Job whose manifest is waited for is named.
    """
    jobs = sorted((job for job in plan.observed.jobs if job.step == step), key=lambda job: job.attempt)
    whole = plan.ledger.history(step.name)
    if whole.shards is None:
        # How many Jobs share the stage, once there is one; those of another controller's Job go with that.
        begun = next((job.shard.of if job.shard else 1 for job in jobs if plan.owns(job)), None)
        whole = whole.model_copy(update={"shards": begun})
    histories = {step.name: whole}
    for shard in _shards_in_use(plan, histories, step):
        name = shard_name(step, shard)
        own = [job for job in jobs if shard_name(step, job.shard) == name]
        histories[name] = _reviewed(plan, histories.get(name) or plan.ledger.history(name), own)
    plan.record(histories=histories)
    if number := histories[step.name].published:
        plan.actions.append(Publish(step, number))


def _shards_in_use(
    plan: Plan, histories: Mapping[str, AttemptHistory], step: RunStage
) -> tuple[StageShard | None, ...]:
    """The shards of a stage; the last one is the Job that ends it.

    The number of shards stays what it was when the first Job began, until the stage is done: with two numbers at
    once a document would have two owners.
    """
    return stage_shards(histories[step.name].shards or shard_count(plan.context.config, step.stage))


def _reviewed(plan: Plan, history: AttemptHistory, jobs: Sequence[ObservedJob]) -> AttemptHistory:
    for job in jobs:
        if job.attempt <= history.counted:
            if job.state is JobState.ACTIVE:
                # Only a leader that slept through its successor's attempts can have made it.
                plan.delete(job)
        elif plan.owns(job):
            history = _after_job(plan, history, job)
        elif job.state is not JobState.ACTIVE:
            history = history.model_copy(update={"latest": job.attempt, "counted": job.attempt})
    is_open = history.latest > max(history.counted, history.published)
    if is_open and history.latest not in {job.attempt for job in jobs}:
        history = history.after(history.latest, AttemptOutcome.VANISHED)
    return history


def _after_job(plan: Plan, history: AttemptHistory, job: ObservedJob) -> AttemptHistory:
    if any(pod.node for pod in job.pods):
        history = history.model_copy(update={"scheduled": job.attempt})
    outcome = outcome_of(job)
    if outcome is AttemptOutcome.LATE and history.scheduled != job.attempt:
        outcome = AttemptOutcome.UNPLACED
    if outcome is not None:
        # What the pod that explains the outcome said last.
        said = (pod.message for pod in job.pods if outcome_of_pod(pod) is outcome and pod.message)
        return history.after(job.attempt, outcome, next(said, ""))
    history = history.model_copy(update={"latest": max(history.latest, job.attempt)})
    if job.state is not JobState.SUCCEEDED:
        return history
    if job.shard is not None and job.shard.number is not None:
        done = {"latest": job.attempt, "counted": job.attempt, "done": True}
        return history.model_copy(update=done)
    if plan.context.config.cluster.store:
        # Noted for good: nothing that is stored later counts.
        history = history.model_copy(update={"published": job.attempt})
    elif plan.has_waited(f"manifest/{job.uid}", _MANIFEST_DELAY):
        return history.after(job.attempt, AttemptOutcome.NO_MANIFEST)
    plan.message = f"{job.name} ended well; waiting for its manifest"
    return history


def _wind_down(plan: Plan, end: RunEnd) -> None:
    """Delete everything that holds a GPU, in place of the actions decided so far; then the run has ended."""
    plan.actions.clear()
    plan.message = ""
    is_good = end.code is ExitCode.DONE
    for job in plan.observed.jobs:
        if job.state is JobState.ACTIVE:
            if not is_good:
                plan.delete(job)
            elif _let_end(plan, job):
                plan.message = f"{job.name} has published its manifest; waiting until it ended"
                plan.end = None
    plan.delete(*plan.observed.servers, *plan.observed.services)
    if not is_good and plan.ledger.code is None:
        plan.tell("Failed", end.message, warning=True)


def _let_end(plan: Plan, job: ObservedJob) -> bool:
    """Whether a Job may end by itself, because it has published its manifest; one that may not is deleted."""
    if job.step in plan.volume.done and not plan.has_waited(f"leaving/{job.uid}", _TIME_TO_END):
        return True
    plan.delete(job)
    return False


def _status(plan: Plan, step: RunStage | None, progress: str) -> dict[str, str]:
    """Only what changes when something happens: no times and no counters of cycles, so that writes are few."""
    context, end, volume = plan.context, plan.end, plan.volume
    active = sorted(job.name for job in plan.observed.jobs if job.state is JobState.ACTIVE)
    if end is not None and end.code in (ExitCode.USER, ExitCode.BUG):
        # Only a mistake and a bug are there to stay; what was down outside comes back.
        plan.record(code=end.code, why=end.message)
    status = {
        "phase": "Running" if end is None else "Done" if end.code is ExitCode.DONE else "Failed",
        "progress": progress,
        "message": end.message if end else plan.message,
        "jobs": " ".join(active),
        "fence": str(context.fence),
        "config": context.config.hash,
        "prompts": context.prompt_hash,
        "controller": context.owner.name,
    }
    if step is not None:
        status |= {"step": step.name, "iteration": str(step.iteration), "stage": step.stage.job_name}
    if volume.training and end is None:
        status["training"] = volume.training
    if volume.room and end is None:
        status["volume"] = volume.room
    if context.config.cluster.store:
        # For `scope k8s fetch`.
        status["store"] = context.config.cluster.store
    if volume.below_target:
        status["below_target"] = "; ".join(volume.below_target)
    return status | {"ledger": plan.ledger.model_dump_json()}
