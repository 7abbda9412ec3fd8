"""What the controller does next: a pure function of what is wanted, what the API shows, and what is on the volume.

`next_actions` is called again and again with fresh observations (level-triggered): it needs no memory of what it
asked for before, so a controller may be killed anywhere. A stage is done when its manifest is on the volume, and
for no other reason. In each iteration:

    servers of other stages go -> their GPUs are free -> own servers -> they answer -> the Job -> its manifest
"""

from collections.abc import Mapping, Sequence

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.attempts import AttemptOutcome, pause_after
from scope_selfplay.controller.draft import Draft, NextActions, RunEnd
from scope_selfplay.controller.goals import Desired, Markers, stop_of
from scope_selfplay.controller.histories import review_lanes, shares_in_hand
from scope_selfplay.controller.ledger import AttemptHistory, AttemptLedger
from scope_selfplay.controller.manifests import (
    StageAttempt,
    nodes_of,
    rank_service,
    server_deployment,
    server_service,
    spec_hash,
    stage_job,
)
from scope_selfplay.controller.names import BODY_HASH, JOB_NAMES, RunStep, StageShard, lane_name
from scope_selfplay.controller.observed import JobSeen, JobState, Observed
from scope_selfplay.controller.servers import Server, servers_of
from scope_selfplay.controller.waiting import (
    TELL_AFTER,
    late_servers,
    rests,
    say_why_jobs_wait,
    say_why_servers_wait,
    servers_answer,
    still_ending,
)
from scope_selfplay.errors import ExitCode

_LEAVE_TAKING = 120.0
"""Seconds in which a Job may end by itself after its manifest was published."""


def next_actions(
    wanted: Desired, observed: Observed, markers: Markers, waited: Mapping[str, float]
) -> NextActions:
    """What to write, create and delete now, what to tell people, and whether the run has ended.

    `waited` has the seconds since a plan first named each of its `clocks`; a clock that a plan does not name
    starts again. Raises RecordError when the record of attempts cannot be read.
    """
    owner = wanted.author.owner.uid
    # A record that cannot be read is such a problem itself.
    ledger = AttemptLedger(owner=owner) if wanted.problem else AttemptLedger.read(observed.status, owner)
    draft = Draft(wanted.author, observed, waited, ledger)
    stop = stop_of(wanted.author.config, markers)
    steps = [each for each in wanted.steps if stop is None or each.iteration <= stop.iteration]
    step = next((each for each in steps if each not in markers.done), None)
    draft.progress = f"{sum(each in markers.done for each in steps)} of {len(steps)} stages done"
    _tell_progress(draft, markers, step)
    missing = next((each for each in wanted.before if each not in markers.done), None)
    if wanted.problem is not None:
        draft.fail(*wanted.problem)
    elif draft.ledger.code is not None:
        draft.finish = RunEnd(draft.ledger.code, draft.ledger.verdict)
    elif missing is not None:
        draft.fail(
            ExitCode.USER,
            f"iteration {missing.iteration} is not complete: its {JOB_NAMES[missing.stage]} has no manifest; "
            f"apply iteration-{max(1, missing.iteration):02d} first",
        )
    elif not steps:
        why = stop.message if stop else "see `iterations` and `stop_after`"
        draft.fail(ExitCode.USER, f"the run has no such iteration; {why}")
    elif step is None and wanted.edited:
        _refuse_edits(draft, wanted.edited)
    elif step is None:
        draft.finish = RunEnd(ExitCode.DONE, stop.message if stop else "every stage is done")
    else:
        _pursue(draft, wanted, step, markers)
    if draft.finish is not None:
        _wind_down(draft, markers)
    return draft.plan(step)


def _pursue(draft: Draft, wanted: Desired, step: RunStep, markers: Markers) -> None:
    config = wanted.author.config
    lanes = review_lanes(draft, draft.ledger, step)
    draft.ledger = draft.ledger.model_copy(update={"lanes": lanes})
    for name, lane in lanes.items():
        if lane.has_failed(config.cluster.retries):
            draft.fail(_code_of(lane), f"{name}: {lane.why}")
            return
    servers = servers_of(config, step, markers.promoted)
    _remove_others(draft, step, servers, markers)
    active = [job for job in draft.observed.jobs if job.step == step and job.state is JobState.ACTIVE]
    if wanted.edited and not active:
        _refuse_edits(draft, wanted.edited)
        return
    if wanted.edited:
        draft.tell("Edited", f"{', '.join(wanted.edited)} changed; nothing new starts", warning=True)
    stranger = _stranger(draft, step, servers)
    if stranger is not None:
        draft.message = f"waiting for {stranger}, which another controller owns"
        draft.tell("ForeignObject", draft.message, warning=True)
        return
    other = next((job for job in active if job.spec_hash != _spec_hash(draft, job)), None)
    if other is not None and not wanted.edited:
        draft.fail(
            ExitCode.USER,
            f"{other.name} was made from other settings or prompts; delete it, or put them back",
        )
        return
    if active:
        _say_what_holds(draft, active, servers)
        if not wanted.edited:
            _start_jobs(draft, step, lanes, servers)
        return
    if _gpus_are_taken(draft, step, servers):
        return
    _apply_servers(draft, step, servers)
    if servers_answer(draft, servers):
        _start_jobs(draft, step, lanes, servers)


def _refuse_edits(draft: Draft, edited: Sequence[str]) -> None:
    draft.fail(
        ExitCode.USER,
        f"changed since the run began: {', '.join(edited)}; put it back, or begin a run of another name",
    )


def _remove_others(draft: Draft, step: RunStep, servers: Sequence[Server], markers: Markers) -> None:
    """What no part of this step needs goes at once: servers of other stages, Jobs of other stages or attempts."""
    keep = {(server.name, server.step) for server in servers}
    for server in draft.observed.servers:
        if (server.name, server.step) not in keep:
            draft.delete(ObjectKind.DEPLOYMENT, server.name, server.uid, server.owner)
    if nodes_of(draft.author.config, step.stage) > 1:
        keep.add((rank_service(draft.author, step)["metadata"]["name"], step))
    for service in draft.observed.services:
        if (service.name, service.step) not in keep:
            draft.delete(ObjectKind.SERVICE, service.name, service.uid, service.owner)
    for job in draft.observed.jobs:
        if job.state is JobState.ACTIVE and job.step != step and not _takes_leave(draft, job, markers):
            draft.delete(ObjectKind.JOB, job.name, job.uid, job.owner)


def _takes_leave(draft: Draft, job: JobSeen, markers: Markers) -> bool:
    """Whether a Job has published its manifest and is about to end: its log shall end too."""
    return job.step in markers.done and draft.waited(f"leaving/{job.uid}") < _LEAVE_TAKING


def _stranger(draft: Draft, step: RunStep, servers: Sequence[Server]) -> str | None:
    """An object under one of our names that another controller's Job owns: never adopted, never deleted."""
    names, mine = {server.name for server in servers}, draft.author.owner.uid
    for job in draft.observed.jobs:
        if job.step == step and job.state is JobState.ACTIVE and job.owner != mine:
            return f"Job {job.name}"
    for server in draft.observed.servers:
        if server.name in names and server.owner != mine:
            return f"Deployment {server.name}"
    return None


def _spec_hash(draft: Draft, job: JobSeen) -> str:
    return spec_hash(draft.author, StageAttempt(job.step, job.attempt, job.share))


def _gpus_are_taken(draft: Draft, step: RunStep, servers: Sequence[Server]) -> bool:
    """Whether pods of an earlier stage or attempt still hold a node; says so after a while."""
    serving = {(server.name, server.step) for server in servers}
    left = [
        pod
        for pod in draft.observed.pods
        if pod.holds_node
        and ((pod.job is not None and pod.step is not None) or pod.server is not None)
        and (pod.server, pod.step) not in serving
    ]
    if not left:
        return False
    names = ", ".join(sorted(pod.name for pod in left))
    draft.message = f"waiting until {names} ended: {step.name} needs the GPUs"
    if draft.waited(f"ending/{names}") >= TELL_AFTER:
        draft.tell("StillEnding", f"{still_ending(left)}; {step.name} waits", warning=True)
    return True


def _apply_servers(draft: Draft, step: RunStep, servers: Sequence[Server]) -> None:
    """Make what is missing, and bring what differs up to date; between Jobs, so that no Job loses its judge."""
    author = draft.author
    deployments = {each.name: each.body_hash for each in draft.observed.servers}
    services = {each.name: each.body_hash for each in draft.observed.services}
    for server in servers:
        _apply(draft, ObjectKind.SERVICE, server_service(author, server), services.get(server.name))
        if not rests(draft, server):
            _apply(
                draft, ObjectKind.DEPLOYMENT, server_deployment(author, server), deployments.get(server.name)
            )
    if nodes_of(author.config, step.stage) > 1:
        service = rank_service(author, step)
        _apply(draft, ObjectKind.SERVICE, service, services.get(service["metadata"]["name"]))


def _apply(draft: Draft, kind: ObjectKind, body: Body, found: str | None) -> None:
    if found != body["metadata"]["annotations"][BODY_HASH]:
        draft.apply(kind, body)


def _start_jobs(
    draft: Draft, step: RunStep, lanes: Mapping[str, AttemptHistory], servers: tuple[Server, ...]
) -> None:
    *shares, last = shares_in_hand(draft, lanes, step)
    missing = [share for share in shares if not lanes[lane_name(step, share)].done]
    # With every share made, or none to make, it is one Job's turn: the one that publishes the manifest.
    for share in missing or [last]:
        _start_job(draft, step, share, lanes[lane_name(step, share)], servers)


def _start_job(
    draft: Draft, step: RunStep, share: StageShard | None, lane: AttemptHistory, servers: tuple[Server, ...]
) -> None:
    """The next attempt, when the last one is over and its pause too."""
    if lane.seen > lane.counted:
        return
    pause = pause_after(lane.spared)
    if pause and draft.waited(f"pause/{lane_name(step, share)}/{lane.counted}") < pause:
        draft.message = f"{lane_name(step, share)}: {lane.why}; trying again within {pause:.0f} s"
        return
    attempt = StageAttempt(step, lane.seen + 1, share)
    body = stage_job(draft.author, attempt, servers)
    draft.create(body)
    name = body["metadata"]["name"]
    if lane.outcome is not None:
        draft.tell("Retry", f"{name}: {lane.why}", warning=lane.outcome is not AttemptOutcome.STOPPED)
    draft.tell("StageStarted", name)
    draft.message = f"starting {name}"


def _say_what_holds(draft: Draft, active: Sequence[JobSeen], servers: Sequence[Server]) -> None:
    """While Jobs run: what their own pods and those of their servers wait for; their exit decides what follows."""
    late = [server.name for server in late_servers(draft, servers)]
    say_why_jobs_wait(draft, active)
    say_why_servers_wait(draft, [each for each in draft.observed.servers if each.name in late])
    running = f"running {', '.join(job.name for job in active)}"
    draft.message = draft.message or "; ".join([running, *(f"{name} does not answer" for name in late)])


def _tell_progress(draft: Draft, markers: Markers, step: RunStep | None) -> None:
    before = draft.observed.status.get("step")
    done = next((each for each in markers.done if each.name == before), None)
    if done is not None and done != step:
        draft.tell("StageDone", f"{done.name} is done; {draft.progress}")


def _wind_down(draft: Draft, markers: Markers) -> None:
    """The end, good or bad: everything that holds a GPU goes, and the verdict comes last."""
    draft.forget_actions()
    is_good = draft.finish is not None and draft.finish.code is ExitCode.DONE
    for job in draft.observed.jobs:
        if job.state is not JobState.ACTIVE:
            continue
        if is_good and _takes_leave(draft, job, markers):
            draft.wait(f"{job.name} has published its manifest; waiting until it ended")
        else:
            draft.delete(ObjectKind.JOB, job.name, job.uid, job.owner)
    for server in draft.observed.servers:
        draft.delete(ObjectKind.DEPLOYMENT, server.name, server.uid, server.owner)
    for service in draft.observed.services:
        draft.delete(ObjectKind.SERVICE, service.name, service.uid, service.owner)


def _code_of(lane: AttemptHistory) -> ExitCode:
    match lane.outcome:
        case AttemptOutcome.USER | AttemptOutcome.OUT_OF_MEMORY:
            return ExitCode.USER
        case _:
            return ExitCode.BUG
