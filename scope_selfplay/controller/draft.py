"""A plan while it is written: actions in order, what people are told, and the clocks that it looked at."""

from collections.abc import Mapping
from typing import NamedTuple

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.ledger import AttemptLedger
from scope_selfplay.controller.manifests import ManifestContext
from scope_selfplay.controller.names import JOB_NAMES, RunStep
from scope_selfplay.controller.observed import JobState, Observed
from scope_selfplay.errors import ExitCode


class Create(NamedTuple):
    """A Job: created once under its name, never changed."""

    body: Body


class Apply(NamedTuple):
    kind: ObjectKind
    body: Body


class Delete(NamedTuple):
    kind: ObjectKind
    name: str
    uid: str


class Say(NamedTuple):
    """An Event about the controller's Job: `kubectl describe job <run>-controller` shows them all."""

    reason: str
    message: str
    warning: bool


class RunEnd(NamedTuple):
    code: ExitCode
    message: str


class NextActions(NamedTuple):
    status: Mapping[str, str]
    """Data of the status ConfigMap; written before anything is done, so that no deed is unrecorded."""
    actions: tuple[Create | Apply | Delete, ...]
    says: tuple[Say, ...]
    finish: RunEnd | None
    """The verdict; it holds when there is nothing left to do."""
    clocks: frozenset[str]


class Draft:
    def __init__(
        self, author: ManifestContext, observed: Observed, waited: Mapping[str, float], ledger: AttemptLedger
    ) -> None:
        self.author = author
        self.observed = observed
        self.finish: RunEnd | None = None
        self.ledger = ledger
        self.message = ""
        self.progress = ""
        self._waited = waited
        self._actions: list[Create | Apply | Delete] = []
        self._says: list[Say] = []
        self._clocks: set[str] = set()

    def create(self, body: Body) -> None:
        self._actions.append(Create(body))

    def apply(self, kind: ObjectKind, body: Body) -> None:
        self._actions.append(Apply(kind, body))

    def delete(self, kind: ObjectKind, name: str, uid: str, owner: str | None) -> None:
        """Delete what this controller's Job owns; another controller's objects are its own business."""
        action = Delete(kind, name, uid)
        if owner == self.author.owner.uid and action not in self._actions:
            self._actions.append(action)

    def forget_actions(self) -> None:
        self._actions.clear()

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._says.append(Say(reason, message, warning))

    def fail(self, code: ExitCode, message: str) -> None:
        if self.finish is None:
            self.finish = RunEnd(code, message)
            self.tell("Failed", message, warning=True)

    def wait(self, message: str) -> None:
        """Put the verdict off."""
        self.finish, self.message = None, message

    def waited(self, clock: str) -> float:
        """Seconds since a plan first looked at this clock, without a plan since that did not."""
        self._clocks.add(clock)
        return self._waited.get(clock, 0.0)

    def actions_on(self, kind: ObjectKind) -> bool:
        return any(isinstance(each, Apply) and each.kind is kind for each in self._actions)

    def plan(self, step: RunStep | None) -> NextActions:
        return NextActions(
            self._status(step), tuple(self._actions), tuple(self._says), self.finish, frozenset(self._clocks)
        )

    def _status(self, step: RunStep | None) -> dict[str, str]:
        """Only what changes when something happens: no times and no counters of cycles, so that writes are few."""
        active = sorted(job.name for job in self.observed.jobs if job.state is JobState.ACTIVE)
        status = {
            "phase": self._phase(),
            "progress": self.progress,
            "message": self.finish.message if self.finish else self.message,
            "jobs": " ".join(active),
            "fence": str(self.author.fence),
            "config": self.author.config.hash,
            "prompts": self.author.prompt_hash,
            "controller": self.author.owner.name,
        }
        if step is not None:
            status |= {
                "step": step.name,
                "iteration": str(step.iteration),
                "stage": JOB_NAMES[step.stage],
            }
        return status | {"ledger": self._ledger().model_dump_json()}

    def _ledger(self) -> AttemptLedger:
        # Only a mistake and a bug are there to stay; what was down outside comes back.
        if self.finish is None or self.finish.code not in (ExitCode.USER, ExitCode.BUG):
            return self.ledger
        return self.ledger.model_copy(update={"code": self.finish.code, "verdict": self.finish.message})

    def _phase(self) -> str:
        match self.finish:
            case None:
                return "Running"
            case RunEnd(code=ExitCode.DONE):
                return "Done"
            case _:
                return "Failed"
