"""How an attempt ended, and what follows from it: the decision table of failures. Pure."""

from enum import StrEnum

from scope_selfplay.controller.observed import JobSeen, JobState, PodSeen
from scope_selfplay.errors import ExitCode

_FIRST_PAUSE = 15.0
_LONGEST_PAUSE = 600.0


class AttemptOutcome(StrEnum):
    """In the order in which they explain each other where several pods of one Job ended differently."""

    USER = "user"
    OUT_OF_MEMORY = "out_of_memory"
    DISRUPTED = "disrupted"
    OUTSIDE = "outside"
    BUG = "bug"
    KILLED = "killed"
    STOPPED = "stopped"
    LATE = "late"
    UNPLACED = "unplaced"
    NO_MARKER = "no_marker"
    VANISHED = "vanished"
    LOST = "lost"


class FailureResponse(StrEnum):
    FAIL = "fail"
    RETRY = "retry"
    """Another attempt, and one less in the budget."""
    SPARE = "spare"
    """Another attempt after a pause that doubles, at no cost to the budget."""


def response_to(outcome: AttemptOutcome) -> FailureResponse:
    match outcome:
        case AttemptOutcome.USER | AttemptOutcome.OUT_OF_MEMORY:
            return FailureResponse.FAIL
        case (
            AttemptOutcome.OUTSIDE
            | AttemptOutcome.STOPPED
            | AttemptOutcome.DISRUPTED
            | AttemptOutcome.LOST
            | AttemptOutcome.UNPLACED
        ):
            return FailureResponse.SPARE
        # A Job that vanished may have failed a moment before: to spare it could repeat for ever.
        case (
            AttemptOutcome.BUG
            | AttemptOutcome.KILLED
            | AttemptOutcome.LATE
            | AttemptOutcome.NO_MARKER
            | AttemptOutcome.VANISHED
        ):
            return FailureResponse.RETRY


def outcome_of(job: JobSeen) -> AttemptOutcome | None:
    """How a failed Job failed; None for one that has not.

    At its deadline a Job's pods are deleted, so whether one of them ever had a node is for the record to say.
    """
    if job.state is not JobState.FAILED:
        return None
    if job.late:
        return AttemptOutcome.LATE
    ends = {end for pod in job.pods if (end := _end(pod)) is not None}
    # No pod is left to ask: its node went, or somebody deleted it.
    return next((each for each in AttemptOutcome if each in ends), AttemptOutcome.LOST)


def pause_after(spared: int) -> float:
    """Seconds before the next attempt, after `spared` attempts in a row that cost nothing."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(spared - 1, 10)) if spared else 0.0


def explanation(outcome: AttemptOutcome, message: str) -> str:
    """One line for a person: what happened, what the program said, what to do."""
    said = f" ({message})" if message else ""
    match outcome:
        case AttemptOutcome.USER:
            return message or "it ended with exit 64; its log says what to change"
        case AttemptOutcome.OUT_OF_MEMORY:
            return f"out of memory{said}: raise cluster.<stage>.memory, or lower micro_batch or in_flight"
        case AttemptOutcome.DISRUPTED:
            return f"its pod was evicted, preempted or lost its node{said}"
        case AttemptOutcome.OUTSIDE:
            return f"something outside was down{said}"
        case AttemptOutcome.BUG:
            return f"it ended with an error{said}; see its log"
        case AttemptOutcome.KILLED:
            return f"it was killed with SIGKILL{said}"
        case AttemptOutcome.STOPPED:
            return "it was stopped after saving"
        case AttemptOutcome.LATE:
            return "it met its deadline; raise cluster.<stage>.deadline if it makes progress"
        case AttemptOutcome.UNPLACED:
            return "no pod of it had a node before its deadline; free one, or lower cluster.<stage>"
        case AttemptOutcome.NO_MARKER:
            return (
                "it ended well and its manifest is not on the volume; see that all pods mount the same volume"
            )
        case AttemptOutcome.VANISHED:
            return "its Job was deleted before the stage was done"
        case AttemptOutcome.LOST:
            return "its pod is gone, and how it ended with it"


def message_of(job: JobSeen) -> str:
    """What the pod that explains the Job's outcome said last."""
    outcome = outcome_of(job)
    return next((pod.message for pod in job.pods if _end(pod) is outcome and pod.message), "")


def _end(pod: PodSeen) -> AttemptOutcome | None:
    # An evicted pod's container ends with 137 or 143 like any other: the pod's reason comes first.
    if pod.disrupted:
        return AttemptOutcome.DISRUPTED
    if pod.oom_killed:
        return AttemptOutcome.OUT_OF_MEMORY
    match pod.exit_code:
        case None | 0:
            return None
        case ExitCode.USER:
            return AttemptOutcome.USER
        case ExitCode.OUTSIDE:
            return AttemptOutcome.OUTSIDE
        case ExitCode.TERMINATED | ExitCode.INTERRUPTED:
            return AttemptOutcome.STOPPED
        case 137:
            return AttemptOutcome.KILLED
        case _:
            return AttemptOutcome.BUG
