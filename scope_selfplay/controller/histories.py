"""What became of the attempts of one stage: each share's Jobs against the record. Pure but for the draft it fills."""

from collections.abc import Mapping, Sequence

from scope_selfplay.controller.api import ObjectKind
from scope_selfplay.controller.attempts import AttemptOutcome, message_of, outcome_of
from scope_selfplay.controller.draft import Draft
from scope_selfplay.controller.ledger import AttemptHistory, AttemptLedger
from scope_selfplay.controller.manifests import shard_count, stage_shards
from scope_selfplay.controller.names import RunStep, StageShard, lane_name
from scope_selfplay.controller.observed import JobSeen, JobState

_MARKER_GRACE = 60.0
"""Seconds in which a manifest must appear after its Job ended well: other nodes see a shared volume a little later."""


def shares_in_hand(
    draft: Draft, lanes: Mapping[str, AttemptHistory], step: RunStep
) -> tuple[StageShard | None, ...]:
    """The shares of a stage, the Job that ends it last.

    The count with which its first Job began holds until the stage is done: with two counts at once a document
    would have two owners.
    """
    return stage_shards(lanes[step.name].shards or shard_count(draft.author.config, step.stage))


def review_lanes(draft: Draft, ledger: AttemptLedger, step: RunStep) -> dict[str, AttemptHistory]:
    """The record of this step brought up to date; what other steps had is dropped, so that it never grows."""
    jobs = sorted((job for job in draft.observed.jobs if job.step == step), key=lambda job: job.attempt)
    whole = ledger.lane(step.name)
    if whole.shards is None:
        whole = whole.model_copy(update={"shards": _shards_begun(draft, jobs)})
    lanes = {step.name: whole}
    for share in shares_in_hand(draft, lanes, step):
        name = lane_name(step, share)
        mine = [job for job in jobs if lane_name(step, job.share) == name]
        lanes[name] = _review(draft, lanes.get(name) or ledger.lane(name), mine)
    return lanes


def _shards_begun(draft: Draft, jobs: Sequence[JobSeen]) -> int | None:
    """How many Jobs share the stage, once there is one; those of another controller's Job go with that."""
    mine = [job for job in jobs if job.owner == draft.author.owner.uid]
    return next((job.share.of if job.share else 1 for job in mine), None)


def _review(draft: Draft, lane: AttemptHistory, jobs: Sequence[JobSeen]) -> AttemptHistory:
    mine = draft.author.owner.uid
    for job in jobs:
        if job.attempt <= lane.counted:
            if job.state is JobState.ACTIVE and job.owner == mine:
                # Only a leader that slept through its successor's attempts can have made it.
                draft.delete(ObjectKind.JOB, job.name, job.uid, job.owner)
        elif job.owner != mine:
            if job.state is not JobState.ACTIVE:
                lane = lane.model_copy(update={"seen": job.attempt, "counted": job.attempt})
        else:
            lane = _after_job(draft, lane, job)
    existing = {job.attempt for job in jobs}
    if lane.seen > lane.counted and lane.seen not in existing:
        lane = lane.after(lane.seen, AttemptOutcome.VANISHED, "")
    return lane


def _after_job(draft: Draft, lane: AttemptHistory, job: JobSeen) -> AttemptHistory:
    if any(pod.has_node for pod in job.pods):
        lane = lane.model_copy(update={"placed": job.attempt})
    outcome = outcome_of(job)
    if outcome is AttemptOutcome.LATE and lane.placed != job.attempt:
        outcome = AttemptOutcome.UNPLACED
    if outcome is not None:
        return lane.after(job.attempt, outcome, message_of(job))
    if job.state is JobState.SUCCEEDED:
        if job.share is not None and job.share.number is not None:
            return lane.model_copy(update={"seen": job.attempt, "counted": job.attempt, "done": True})
        if draft.waited(f"marker/{job.uid}") >= _MARKER_GRACE:
            return lane.after(job.attempt, AttemptOutcome.NO_MARKER, "")
        draft.message = f"{job.name} ended well; waiting for its manifest"
    return lane.model_copy(update={"seen": max(lane.seen, job.attempt)})
