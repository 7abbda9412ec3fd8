"""The values that a plan is made of: the situation that it starts from, its parts, and what comes out. Pure.

Each question of the plan is answered by a function from a `Situation` to a `PlanPart`; `plan.next_actions` adds the
parts up and turns their sum into `NextActions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.goals import RunEnd, VolumeState
from scope_selfplay.controller.manifests import ManifestContext
from scope_selfplay.controller.observed import ObservedCluster


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


Action = Create | Apply | Delete


class ControllerEvent(NamedTuple):
    """An Event about the controller's Job: `kubectl describe job <run>-controller` shows them all."""

    reason: str
    message: str
    warning: bool


@dataclass(frozen=True)
class PlanPart:
    """The answer to one question; `a + b` is both: actions and events in order, the newer message, the older end."""

    actions: tuple[Action, ...] = ()
    events: tuple[ControllerEvent, ...] = ()
    message: str = ""
    """What the run is doing or waiting for; empty where there is nothing to say."""
    end: RunEnd | None = None
    clocks: frozenset[str] = frozenset()
    """The clocks of `Situation.waited` that this answer depends on."""

    def __add__(self, newer: "PlanPart") -> "PlanPart":
        return PlanPart(
            self.actions + newer.actions,
            self.events + newer.events,
            newer.message or self.message,
            self.end or newer.end,
            self.clocks | newer.clocks,
        )

    def applies(self, kind: ObjectKind) -> bool:
        return any(isinstance(action, Apply) and action.kind is kind for action in self.actions)


def warn(reason: str, message: str) -> PlanPart:
    """A message that goes out as an Event too."""
    return PlanPart(message=message, events=(ControllerEvent(reason, message, True),))


class OwnedObject(Protocol):
    """A Job, Deployment or Service as the API shows it."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def owner(self) -> str | None: ...


@dataclass(frozen=True)
class Situation:
    """What one plan is made from."""

    context: ManifestContext
    observed: ObservedCluster
    volume: VolumeState
    waited: Mapping[str, float]
    """Seconds since a plan first named each of its clocks; a clock that a plan does not name starts again."""

    def has_waited(self, clock: str, seconds: float) -> bool:
        return self.waited.get(clock, 0.0) >= seconds

    def owns(self, found: OwnedObject) -> bool:
        return found.owner == self.context.owner.uid

    def delete(self, kind: ObjectKind, found: OwnedObject) -> PlanPart:
        """Deletes what this controller's Job owns; another controller's objects are left alone."""
        return PlanPart((Delete(kind, found.name, found.uid),)) if self.owns(found) else PlanPart()


class NextActions(NamedTuple):
    status: Mapping[str, str]
    """Data of the status ConfigMap; written before anything is done, so that no action goes unrecorded."""
    actions: tuple[Action, ...]
    events: tuple[ControllerEvent, ...]
    end: RunEnd | None
    """It holds when there is nothing left to do."""
    clocks: frozenset[str]
