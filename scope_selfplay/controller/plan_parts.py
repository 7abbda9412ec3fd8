"""The values that a plan is made of: the wanted steps, what the volume shows, the parts of a plan, the actions.

Each question of the plan is answered by a function from a `Situation` to a `PlanPart`; `plan.next_actions` adds the
parts up and turns their sum into `NextActions`. Pure, but for `read_volume`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.manifests import ManifestContext, RunStage
from scope_selfplay.controller.observed import ObservedCluster, ObservedObject
from scope_selfplay.errors import ExitCode, RecordError, StorageError
from scope_selfplay.schedule import stages_of, stop_message
from scope_selfplay.store import RunFolder, Stage
from scope_selfplay.store.folders import MANIFEST, parse_manifest
from scope_selfplay.store.ratings import Ratings, read_ratings
from scope_selfplay.store.task_target import read_task_target


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: the controller's exit code, and why in one line."""

    code: ExitCode
    message: str


def steps_of(config: RunConfig) -> tuple[RunStage, ...]:
    """Every stage of a run, in order."""
    return tuple(RunStage(iteration, stage) for iteration, stage in stages_of(config))


@dataclass(frozen=True)
class DesiredSteps:
    """The whole run, or one iteration of it; iteration 1 brings the held-out tasks along."""

    context: ManifestContext
    only_iteration: int | None = None
    edited: tuple[str, ...] = ()
    """Settings that changed since the run began, and `prompts`."""
    problem: RunEnd | None = None
    """What the API server or the volume refused for good."""

    @property
    def steps(self) -> tuple[RunStage, ...]:
        """The steps that this controller is to do, in order."""
        steps, only = steps_of(self.context.config), self.only_iteration
        return tuple(step for step in steps if only is None or max(1, step.iteration) == only)

    @property
    def before(self) -> tuple[RunStage, ...]:
        """The steps that must be done already."""
        steps, only = steps_of(self.context.config), self.only_iteration
        return tuple(step for step in steps if only is not None and max(1, step.iteration) < only)


@dataclass(frozen=True)
class VolumeState:
    """What the shared volume shows; `ratings[t]` is known for every compared iteration t."""

    done: frozenset[RunStage]
    """The steps whose manifest.json exists."""
    ratings: tuple[Ratings, ...] = ()
    below_target: tuple[str, ...] = ()
    """Iterations whose task making ended below its target, in words."""
    training: str = ""
    """How far the training that is going on is, in words."""
    room: str = ""
    """What the stage at work said of too little room on the volume."""

    @property
    def promoted(self) -> tuple[bool, ...]:
        return tuple(ratings.promoted for ratings in self.ratings)


def read_volume(folder: RunFolder, steps: Iterable[RunStage]) -> VolumeState:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest.json that is not a manifest, StorageError when the volume cannot be read.
    """
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path, step))
    ratings: list[Ratings] = []
    while RunStage(len(ratings), Stage.COMPARE) in done:
        ratings.append(read_ratings(folder, len(ratings)))
    made = sorted(step.iteration for step in done if step.stage is Stage.TASKS and step.iteration > 0)
    return VolumeState(done, tuple(ratings), tuple(_below_target(folder, made)))


def _below_target(folder: RunFolder, made: Iterable[int]) -> Iterator[str]:
    for iteration in made:
        reached = read_task_target(folder, iteration)
        if reached is not None and reached.missed:
            yield f"iteration {iteration}: {reached.accepted} of {reached.target} tasks"


def _is_done(folder: Path, step: RunStage) -> bool:
    try:
        manifest = parse_manifest(folder)
    except OSError as error:
        raise StorageError(
            f"{folder / MANIFEST}: cannot be read ({error.strerror}); see that the volume is well"
        ) from error
    if manifest is None:
        return False
    if (manifest.iteration, manifest.stage) != (step.iteration, step.stage.value):
        raise RecordError(
            f"{folder / MANIFEST}: is the manifest of iteration {manifest.iteration} {manifest.stage}; "
            "remove the stage folder"
        )
    return True


def stop_of(config: RunConfig, volume: VolumeState) -> tuple[int, str] | None:
    """The iteration whose comparison ended the run, and why; None where the settings ask to go on all the same."""
    for iteration, ratings in enumerate(volume.ratings):
        if (message := stop_message(config, iteration, ratings)) is not None:
            return iteration, message
    return None


@dataclass(frozen=True)
class Create:
    """A Job or a JobSet: created once under its name, never changed."""

    kind: ObjectKind
    body: Body


@dataclass(frozen=True)
class Apply:
    kind: ObjectKind
    body: Body


@dataclass(frozen=True)
class Delete:
    kind: ObjectKind
    name: str
    uid: str


Action = Create | Apply | Delete


@dataclass(frozen=True)
class ControllerEvent:
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


def warn(reason: str, message: str) -> PlanPart:
    """A message that goes out as an Event too."""
    return PlanPart(message=message, events=(ControllerEvent(reason, message, True),))


@dataclass(frozen=True)
class Situation:
    """What one plan is made from."""

    context: ManifestContext
    observed: ObservedCluster
    volume: VolumeState
    waited: Mapping[str, float]
    """Seconds since a plan first named each of its clocks; a clock that a plan does not name starts again."""

    def has_waited(self, clock: str, seconds: float) -> tuple[bool, PlanPart]:
        """Whether so long has passed on a clock, and the part of the plan that keeps the clock going."""
        return self.waited.get(clock, 0.0) >= seconds, PlanPart(clocks=frozenset({clock}))

    @property
    def is_gang(self) -> bool:
        """Whether a stage is one JobSet with its servers."""
        return self.context.config.cluster.gang is not None

    def owns(self, found: ObservedObject) -> bool:
        return found.owner == self.context.owner.uid

    def delete(self, kind: ObjectKind, found: ObservedObject) -> PlanPart:
        """Deletes what this controller's Job owns; another controller's objects are left alone."""
        return PlanPart((Delete(kind, found.name, found.uid),)) if self.owns(found) else PlanPart()


@dataclass(frozen=True)
class NextActions:
    status: Mapping[str, str]
    """Data of the status ConfigMap; written before anything is done, so that no action goes unrecorded."""
    actions: tuple[Action, ...]
    events: tuple[ControllerEvent, ...]
    end: RunEnd | None
    """Final only when there are no `actions` left."""
    clocks: frozenset[str]
