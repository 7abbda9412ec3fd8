"""The attempts of a stage: how each one ended, what follows from that, and the record of them. Pure.

The decision table of failures (`AttemptOutcome`), and the record that the status ConfigMap keeps because finished Jobs
are deleted (`AttemptLedger`); `plan` reviews it against the Jobs that are there.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, ValidationError

from scope_selfplay.base.errors import ExitCode, RecordError
from scope_selfplay.base.values import Value
from scope_selfplay.driver.observed import JobState, ObservedJob, ObservedPod

_FIRST_PAUSE = 15.0
_LONGEST_PAUSE = 600.0


class FailureResponse(StrEnum):
    FAIL = "fail"
    RETRY = "retry"
    """Another attempt, which costs one of `plan.RETRIES`."""
    RETRY_FREE = "retry_free"
    """Another attempt after a pause that doubles; costs no retry."""


class AttemptOutcome(StrEnum):
    """How an attempt failed. Where the pods of one Job ended differently, the first one in this order decides."""

    USER = "user"
    OUT_OF_MEMORY = "out_of_memory"
    DISRUPTED = "disrupted"
    OUTSIDE = "outside"
    BUG = "bug"
    KILLED = "killed"
    STOPPED = "stopped"
    LATE = "late"
    UNPLACED = "unplaced"
    NO_MANIFEST = "no_manifest"
    VANISHED = "vanished"
    LOST = "lost"

    @property
    def response(self) -> FailureResponse:
        return _MEANING[self][0]

    def explanation(self, message: str) -> str:
        """One line for a person: what happened, what the program said, what to do."""
        if self is AttemptOutcome.USER and message:
            return message
        return _MEANING[self][1].format(f" ({message})" if message else "")


_RETRY, _FREE = FailureResponse.RETRY, FailureResponse.RETRY_FREE
_OUT_OF_MEMORY = "out of memory{}: raise its limit in cluster.<stage>.pod, or lower micro_tokens or in_flight"
_NO_MANIFEST = "it ended well and its manifest is not on the volume; see that all pods mount the same volume"
_MEANING = {
    AttemptOutcome.USER: (FailureResponse.FAIL, "it ended with exit 64; its log says what to change"),
    AttemptOutcome.OUT_OF_MEMORY: (FailureResponse.FAIL, _OUT_OF_MEMORY),
    AttemptOutcome.DISRUPTED: (_FREE, "its pod was evicted, preempted or lost its node{}"),
    AttemptOutcome.OUTSIDE: (_FREE, "something outside was down{}"),
    AttemptOutcome.BUG: (_RETRY, "it ended with an error{}; see its log"),
    AttemptOutcome.KILLED: (_RETRY, "it was killed with SIGKILL{}"),
    AttemptOutcome.STOPPED: (_FREE, "it was stopped after saving"),
    AttemptOutcome.LATE: (_RETRY, "it met its deadline; raise cluster.deadline if it makes progress"),
    AttemptOutcome.UNPLACED: (
        _FREE,
        "no pod of it had a node before its deadline; free one, or lower cluster.<stage>",
    ),
    AttemptOutcome.NO_MANIFEST: (_RETRY, _NO_MANIFEST),
    # It may have failed a moment before: without a cost it could repeat for ever.
    AttemptOutcome.VANISHED: (_RETRY, "its Job was deleted before the stage was done"),
    AttemptOutcome.LOST: (_FREE, "its pod is gone, and how it ended with it"),
}
"""What follows, and what a person is told; {} is what the program said last."""


def outcome_of(job: ObservedJob) -> AttemptOutcome | None:
    """How a failed Job failed; None for one that has not.

    At its deadline a Job's pods are deleted, so whether one of them ever had a node is for the record to say.
    """
    if job.state is not JobState.FAILED:
        return None
    if job.deadline_exceeded:
        return AttemptOutcome.LATE
    outcomes = {outcome for pod in job.pods if (outcome := outcome_of_pod(pod)) is not None}
    # No pod is left to ask: its node went, or somebody deleted it.
    return next((outcome for outcome in AttemptOutcome if outcome in outcomes), AttemptOutcome.LOST)


def outcome_of_pod(pod: ObservedPod) -> AttemptOutcome | None:
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


def pause_after(free_failures: int) -> float:
    """Seconds before the next attempt, after so many failures in a row that cost nothing."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(free_failures - 1, 10)) if free_failures else 0.0


class AttemptHistory(Value):
    """The attempts of one stage, or of one shard of it; always the same few numbers, however often it is tried."""

    latest: int = 0
    """Highest attempt whose Job existed."""
    counted: int = 0
    """Highest attempt whose end is in the numbers below."""
    failures_counted: int = 0
    """Failed attempts that cost budget."""
    free_failures: int = 0
    """Failures in a row, the latest included, that cost nothing."""
    scheduled: int = 0
    """Highest attempt of which a pod was seen on a node."""
    published: int = 0
    """With `cluster.store`: the attempt whose work is the stage's, noted before it is published, so that
    nobody publishes another."""
    done: bool = False
    """The documents of this shard are done; a whole stage is done only when its manifest exists."""
    shards: int | None = None
    """Of a whole stage: how many Jobs share it, fixed when the first one is created."""
    outcome: AttemptOutcome | None = None
    message: str = ""

    def after(self, attempt: int, outcome: AttemptOutcome, message: str = "") -> "AttemptHistory":
        costs = outcome.response is FailureResponse.RETRY
        return self.model_copy(
            update={
                "latest": max(self.latest, attempt),
                "counted": attempt,
                "failures_counted": self.failures_counted + costs,
                "free_failures": 0 if costs else self.free_failures + 1,
                "outcome": outcome,
                "message": message,
            }
        )

    def failure(self, retries: int) -> ExitCode | None:
        """The exit code with which these attempts end the run; None while there may be another one."""
        if self.outcome is None:
            return None
        if self.outcome.response is FailureResponse.FAIL:
            return ExitCode.USER
        return ExitCode.BUG if self.failures_counted > retries else None

    @property
    def why(self) -> str:
        return self.outcome.explanation(self.message) if self.outcome else ""


class GivenUp(Value):
    """A server that did not answer in time."""

    uid: str
    """The uid of the Deployment that is being deleted; its successor has another one."""
    times: int
    """How often in a row."""


class AttemptLedger(Value):
    """What was tried so far; kept in the status ConfigMap."""

    owner: str = ""
    """The controller Job that counted; another one begins with a fresh budget and goes on with the numbers."""
    histories: dict[str, AttemptHistory] = Field(default_factory=dict)
    given_up: dict[str, GivenUp] = Field(default_factory=dict)
    """By name, until the server answers."""
    given_back: int = 0
    """How often in a row the run gave its GPUs back because others held the rest that it needs."""
    beside: int = 0
    """Pods that other runs of the namespace had on nodes when it did so last."""
    code: ExitCode | None = None
    """How the run failed. It stays failed for this controller Job, also when what showed it has been deleted."""
    why: str = ""

    @classmethod
    def read(cls, status: Mapping[str, str], owner: str, others: Collection[str] = ()) -> Self:
        """Raises RecordError for a ledger that cannot be read, such as one that was edited by hand.

        `others` are the uids of Jobs from which the owner takes over: their attempts go on.
        """
        text = status.get("ledger")
        if text is None:
            return cls(owner=owner)
        try:
            ledger = cls.model_validate_json(text)
        except ValidationError as error:
            what = str(error).splitlines()[0]
            raise RecordError(f"status ConfigMap: its ledger cannot be read ({what}); delete it") from None
        if ledger.owner == owner:
            return ledger
        kept = {"latest", "counted", "scheduled", "published", "done", "shards"}
        fresh = {
            name: AttemptHistory(**history.model_dump(include=kept))
            if ledger.owner in others
            else AttemptHistory(**history.model_dump(include={"latest", "published"}), counted=history.latest)
            for name, history in ledger.histories.items()
        }
        return cls(owner=owner, histories=fresh)

    def history(self, name: str) -> AttemptHistory:
        return self.histories.get(name, AttemptHistory())
