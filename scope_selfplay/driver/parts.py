"""The values that a plan is made of: the wanted steps, what the volume shows, the parts of a plan, the actions.

Each question of the plan is answered by a function from a `Situation` to a `PlanPart`; `plan.next_actions` adds the
parts up and turns their sum into `NextActions`. Pure, but for `read_volume`.
"""

import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scope_selfplay.base.errors import ExitCode, RecordError, StorageError
from scope_selfplay.cluster.pods import ManifestContext, RunStage
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.observed import ObservedCluster, ObservedObject
from scope_selfplay.run.schedule import stages_of, stop_message
from scope_selfplay.store.folder import MANIFEST, RunFolder, Stage, parse_manifest
from scope_selfplay.store.ratings import Ratings, read_ratings
from scope_selfplay.store.records import read_task_target

_RECENT = 5
"""Steps of a training whose mean time says how long the rest takes."""


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


def read_volume(folder: RunFolder, config: RunConfig) -> VolumeState:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest.json that is not a manifest, StorageError when the volume cannot be read.
    """
    steps = steps_of(config)
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path, step))
    ratings: list[Ratings] = []
    while RunStage(len(ratings), Stage.COMPARE) in done:
        ratings.append(read_ratings(folder, len(ratings)))
    made = sorted(step.iteration for step in done if step.stage is Stage.TASKS and step.iteration > 0)
    reached = {iteration: read_task_target(folder, iteration) for iteration in made}
    missed = tuple(
        f"iteration {iteration}: {found.accepted} of {found.target} tasks"
        for iteration, found in reached.items()
        if found is not None and found.missed
    )
    training = room = ""
    if current := next((step for step in steps if step not in done), None):
        training = training_progress(folder, config, current)
        # What the stage said of too little room on the volume when it began.
        with suppress(OSError):
            room = folder.stage(*current).room.read_text().strip()
    return VolumeState(done, tuple(ratings), missed, training, room)


def training_progress(folder: RunFolder, config: RunConfig, step: RunStage) -> str:
    """How far a training is, in one line; empty for a stage that does not train, or has not finished a step yet."""
    steps = {Stage.CHALLENGER: config.challenger.steps, Stage.SOLVER: config.solver.steps}.get(step.stage)
    rows = last_rows(folder.stage(*step).metrics) if steps else []
    if not rows or steps is None:
        return ""
    done = int(rows[-1].get("step", len(rows)))
    seconds = fmean([float(row.get("step_seconds") or 0.0) for row in rows])
    left = max(0, steps - done) * seconds
    duration = f"{left / 3600:.1f} h" if left >= 3600 else f"{left / 60:.0f} min"
    line = f"step {done} of {steps}, {seconds:.0f} s a step, about {duration} left"
    reward = rows[-1].get("reward")
    return f"{line}, reward {reward:.3f}" if isinstance(reward, int | float) else line


def last_rows(path: Path) -> list[dict[str, Any]]:
    """Of the last steps. What cannot be read is left out: the last row may be half written."""
    rows = []
    with suppress(OSError), path.open("rb") as file:
        for line in deque(file, maxlen=_RECENT + 1):
            with suppress(ValueError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)][-_RECENT:]


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
    """A Job: created once under its name, never changed."""

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

    def owns(self, found: ObservedObject) -> bool:
        return found.owner == self.context.owner.uid

    def delete(self, *objects: ObservedObject) -> PlanPart:
        """Deletes what this controller's Job owns; another controller's objects are left alone."""
        return PlanPart(tuple(Delete(each.kind, each.name, each.uid) for each in objects if self.owns(each)))


@dataclass(frozen=True)
class NextActions:
    status: Mapping[str, str]
    """Data of the status ConfigMap; written before anything is done, so that no action goes unrecorded."""
    actions: tuple[Action, ...]
    events: tuple[ControllerEvent, ...]
    end: RunEnd | None
    """Final only when there are no `actions` left."""
    clocks: frozenset[str]
