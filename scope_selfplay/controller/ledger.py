"""What was tried so far: counts per stage, kept in the status ConfigMap because finished Jobs are deleted. Pure."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, ValidationError

from scope_selfplay.controller.attempts import AttemptOutcome, FailureResponse, explanation, response_to
from scope_selfplay.errors import ExitCode, RecordError
from scope_selfplay.schemas import Value


class AttemptHistory(Value):
    """The attempts of one stage, or of one share of it; always the same few numbers, however often it is tried."""

    seen: int = 0
    """Highest attempt whose Job existed."""
    counted: int = 0
    """Highest attempt whose end is in the numbers below."""
    burned: int = 0
    """Attempts that cost budget."""
    spared: int = 0
    """Attempts since the last of those that cost nothing."""
    placed: int = 0
    """Highest attempt of which a pod was seen on a node."""
    done: bool = False
    """This share is made; the whole stage is done by its manifest alone."""
    shards: int | None = None
    """Of a whole stage: how many Jobs share it, from the first one on."""
    outcome: AttemptOutcome | None = None
    message: str = ""

    def after(self, attempt: int, outcome: AttemptOutcome, message: str) -> "AttemptHistory":
        burns = response_to(outcome) is FailureResponse.RETRY
        return self.model_copy(
            update={
                "seen": max(self.seen, attempt),
                "counted": attempt,
                "burned": self.burned + burns,
                "spared": 0 if burns else self.spared + 1,
                "outcome": outcome,
                "message": message,
            }
        )

    def has_failed(self, retries: int) -> bool:
        if self.outcome is None:
            return False
        return response_to(self.outcome) is FailureResponse.FAIL or self.burned > retries

    @property
    def why(self) -> str:
        return explanation(self.outcome, self.message) if self.outcome else ""


class GivenUp(Value):
    """A server that did not answer in time."""

    uid: str
    """Of the Deployment that is to go; the next one has another."""
    times: int
    """How often in a row."""


class AttemptLedger(Value):
    owner: str = ""
    """The controller Job that counted; another one begins with a fresh budget and goes on with the numbers."""
    lanes: dict[str, AttemptHistory] = Field(default_factory=dict)
    given_up: dict[str, GivenUp] = Field(default_factory=dict)
    """By name, until the server answers."""
    code: ExitCode | None = None
    """How the run failed. It stays failed for this controller Job, also when what showed it has been deleted."""
    verdict: str = ""

    @classmethod
    def read(cls, status: Mapping[str, str], owner: str) -> Self:
        """Raises RecordError for a ledger that was edited by hand."""
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
        fresh = {
            name: AttemptHistory(seen=lane.seen, counted=lane.seen) for name, lane in ledger.lanes.items()
        }
        return cls(owner=owner, lanes=fresh)

    def lane(self, name: str) -> AttemptHistory:
        return self.lanes.get(name, AttemptHistory())
