"""What became of the attempts of one stage: each share's Jobs against the record. Pure but for the draft it fills."""

from collections.abc import Sequence

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.api import Kind
from scope_selfplay.controller.draft import Draft
from scope_selfplay.controller.ledger import Lane, Ledger
from scope_selfplay.controller.manifests import shards_of
from scope_selfplay.controller.names import Share, Step
from scope_selfplay.controller.observed import JobSeen, JobState
from scope_selfplay.controller.outcomes import Outcome, message_of, outcome_of

_MARKER_GRACE = 60.0
"""Seconds in which a manifest must appear after its Job ended well: other nodes see a shared volume a little later."""


def shares_of(config: RunConfig, step: Step) -> list[Share]:
    """The shares of a stage that several Jobs make; none where one Job makes it all."""
    count = shards_of(config, step.stage)
    return [Share(number, count) for number in range(count)] if count > 1 else []


def lane_name(step: Step, share: Share | None) -> str:
    return step.name if share is None else f"{step.name}-s{share.number:02d}"


def review_lanes(draft: Draft, ledger: Ledger, step: Step) -> dict[str, Lane]:
    """The record of this step brought up to date; what other steps had is dropped, so that it never grows."""
    lanes: dict[str, Lane] = {}
    for share in (None, *shares_of(draft.author.config, step)):
        number = share.number if share else None
        jobs = [job for job in draft.observed.jobs if job.step == step and job.share == number]
        jobs.sort(key=lambda job: job.attempt)
        name = lane_name(step, share)
        lanes[name] = _review(draft, ledger.lane(name), jobs)
    return lanes


def _review(draft: Draft, lane: Lane, jobs: Sequence[JobSeen]) -> Lane:
    mine = draft.author.owner.uid
    for job in jobs:
        if job.attempt <= lane.counted:
            if job.state is JobState.ACTIVE and job.owner == mine:
                # Only a leader that slept through its successor's attempts can have made it.
                draft.delete(Kind.JOB, job.name, job.uid, job.owner)
        elif job.owner != mine:
            if job.state is not JobState.ACTIVE:
                lane = lane.model_copy(update={"seen": job.attempt, "counted": job.attempt})
        else:
            lane = _after_job(draft, lane, job)
    existing = {job.attempt for job in jobs}
    if lane.seen > lane.counted and lane.seen not in existing:
        lane = lane.after(lane.seen, Outcome.VANISHED, "")
    return lane


def _after_job(draft: Draft, lane: Lane, job: JobSeen) -> Lane:
    if any(pod.has_node for pod in job.pods):
        lane = lane.model_copy(update={"placed": job.attempt})
    outcome = outcome_of(job)
    if outcome is Outcome.LATE and lane.placed != job.attempt:
        outcome = Outcome.UNPLACED
    if outcome is not None:
        return lane.after(job.attempt, outcome, message_of(job))
    if job.state is JobState.SUCCEEDED:
        if job.share is not None:
            return lane.model_copy(update={"seen": job.attempt, "counted": job.attempt, "done": True})
        if draft.waited(f"marker/{job.uid}") >= _MARKER_GRACE:
            return lane.after(job.attempt, Outcome.NO_MARKER, "")
        draft.message = f"{job.name} ended well; waiting for its manifest"
    return lane.model_copy(update={"seen": max(lane.seen, job.attempt)})
