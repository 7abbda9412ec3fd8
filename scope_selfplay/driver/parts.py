"""The values that a plan is made of: the wanted steps, what the volume shows, the actions, the plan itself.

Pure, but for `read_inputs`, `read_volume`, `make_cache` and `RunStore`.
"""

import json
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from scope_selfplay.base.errors import (
    ConfigError,
    ExitCode,
    OutsideError,
    RecordError,
    RunMismatchError,
    UserError,
)
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cluster.pods import CACHE, ManifestContext, RunStage
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.attempts import AttemptLedger
from scope_selfplay.driver.observed import ObservedCluster, ObservedObject
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.schedule import stages_of, stop_message
from scope_selfplay.store.columns import read_task_target
from scope_selfplay.store.files import disk_faults
from scope_selfplay.store.folder import MANIFEST, RunFolder, Stage, parse_manifest
from scope_selfplay.store.object_store import INDEX, ObjectFolder, Unit, pull, store_unit
from scope_selfplay.store.ratings import Ratings, read_ratings

_RECENT = 5
"""Steps of a training whose mean time says how long the rest takes."""
_LOGS = 600.0
"""Seconds between two times that logs are stored."""


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


class Inputs(NamedTuple):
    """What the mounted ConfigMaps say now."""

    config: RunConfig
    prompt_hash: str
    packs: tuple[str, ...]
    edited: tuple[str, ...] = ()
    """Settings that differ from those that the run folder was begun with, and `prompts`."""


def read_inputs(
    config: Path,
    root: Path,
    prompts: Path,
    overrides: tuple[str, ...],
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> Inputs:
    """What is mounted now; the first time, the run folder begins with it.

    Once it has begun, what was edited comes as a reason beside the run's own settings and prompts, so that a
    controller that starts after an edit can still wind the run down. `name` is what the run is called by its Job:
    the settings may not be readable, or name another run. Raises UserError where no run has begun.
    """
    # Each pack comes from a ConfigMap `<run>-prompts-<pack>`: every Job of the run gets the same.
    packs = tuple(sorted(folder.name for folder in prompts.glob("*/")))
    try:
        settings = load_config(config, overrides)
        if name not in (None, settings.name) and RunFolder(root / name).config.is_file():
            raise RunMismatchError(f"name: found {settings.name!r}, this controller's run is {name!r}")
        name = settings.name
        run = open_run(settings, root, progress or Progress(), packs=prompts)
    except UserError as problem:
        if name is None or not (folder := RunFolder(root / name)).config.is_file():
            raise
        try:
            kept, pack = load_config(folder.config), load_pack(folder.prompts)
        except UserError:
            raise problem from None
        return Inputs(kept, pack.hash, packs, (str(problem),))
    return Inputs(run.config, run.pack.hash, packs)


class RunStore:
    """A run's folder where each pod has a disk of its own (`cluster.store`): what the controller's has of the others'.

    All raise OutsideError where the store is down, and UserError for what a person can correct.
    """

    def __init__(self, store: str, folder: RunFolder) -> None:
        self._store, self._folder, self._volume = store, folder, folder.path.parents[1]
        self._unit = partial("runs/{}/{}".format, folder.path.name)
        self._pull = partial(pull, store, volume=self._volume, progress=Progress())
        self._stored_at: float | None = None

    def look(self, config: RunConfig) -> int:
        """Bring what was published, in the order of the run, and how far the stage at work is; its highest attempt.

        First, once, with what the run began: it comes from the store, or goes there before there is a Job.
        """
        try:
            return self._look(config)
        except ConfigError as error:
            # A key that was good is good again soon, and the stages of this run go on.
            raise (error if self._stored_at is None else OutsideError(str(error))) from None

    def _look(self, config: RunConfig) -> int:
        if self._stored_at is None:
            self._pull(Unit(self._unit("log")))
            if not self._pull(Unit(self._unit("begin"))):
                self.store_logs()
            self._stored_at = time.monotonic()
        elif time.monotonic() > self._stored_at + _LOGS:
            self.store_logs()
        for step in steps_of(config):
            folder = self._folder.stage(*step)
            if (folder.path / MANIFEST).exists():
                continue
            part = f"{folder.path.relative_to(self._folder.path)}"
            unit, so_far = Unit(self._unit(part)), (f"{part}/metrics.jsonl", f"{part}/.work/room")
            if not self._pull(unit, wanted=partial(_tells_the_controller, f"{part}/checkpoint/")):
                folder.room.unlink(missing_ok=True)
                self._pull(unit, of_work=True, wanted=so_far.__contains__)
                return ObjectFolder(self._store, Progress(), unit.name).attempts()
        return 0

    def publish(self, step: RunStage, attempt: int) -> None:
        """Make what this attempt ended with what the stage has made; once, however often it is asked."""
        part = self._folder.stage(*step).path.relative_to(self._folder.path)
        remote = ObjectFolder(self._store, Progress(), self._unit(part))
        if remote.index() is not None:
            return
        files = remote.index(name := f"index-a{attempt}.json")
        if files is None or f"{part}/{MANIFEST}" not in files:
            why = "was deleted since its attempt ended well" if files is None else "has no manifest"
            why += "; delete the controller's Job, and the stage is made again"
            raise RecordError(f"{remote.url}/{name}: {why}")
        remote.write_index(INDEX, files)

    def store_logs(self) -> None:
        """And the settings, of which some may be edited while the run goes on."""
        for unit in (Unit(self._unit("begin")), Unit(self._unit("log"))):
            store_unit(ObjectFolder(self._store, Progress(), unit.name), unit, self._volume, [INDEX])
        self._stored_at = time.monotonic()


def _tells_the_controller(weights: str, name: str) -> bool:
    """Whether it is a file that says how a stage ended."""
    return name.endswith((".json", "/metrics.jsonl")) and not name.startswith(weights)


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
    attempts: int = 0
    """With `cluster.store`: the highest attempt at the stage at work that it knows, whoever counted them."""

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


def make_cache(folder: RunFolder, body: Body) -> None:
    """Make the folder that a server mounts as its cache; the kubelet would make it as root's.

    Raises StorageError.
    """
    if "template" not in body.get("spec", {}):
        return
    for mount in body["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        if mount["mountPath"] == CACHE:
            place = folder.caches / mount["subPath"].rpartition("/")[2]
            with disk_faults(place):
                place.mkdir(parents=True, exist_ok=True)


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
    manifest = parse_manifest(folder)
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


@dataclass(frozen=True)
class Adopt:
    """What another form of the controller's Job made becomes this one's, as it is."""

    kind: ObjectKind
    name: str


@dataclass(frozen=True)
class Publish:
    """What this attempt ended with is what the stage has made, with `cluster.store`."""

    step: RunStage
    attempt: int


Action = Create | Apply | Delete | Adopt | Publish


@dataclass(frozen=True)
class ControllerEvent:
    """An Event about the controller's Job: `kubectl describe job <run>-controller` shows them."""

    reason: str
    message: str
    warning: bool


@dataclass
class Plan:
    """One look at a run and its answer: made from the first four fields, which stay as they are, it writes down what
    follows from them as each question is answered."""

    wanted: DesiredSteps
    observed: ObservedCluster
    volume: VolumeState
    waited: Mapping[str, float]
    """Seconds since a plan first named each of its clocks; a clock that a plan does not name starts again."""
    ledger: AttemptLedger
    actions: list[Action] = field(default_factory=list)
    events: list[ControllerEvent] = field(default_factory=list)
    message: str = ""
    """What the run is doing or waiting for, said last; empty where there is nothing to say."""
    end: RunEnd | None = None
    """Final only when there are no `actions` left."""
    clocks: set[str] = field(default_factory=set)
    """The clocks of `waited` that the answer depends on."""
    status: Mapping[str, str] = field(default_factory=dict)
    """Data of the status ConfigMap; written before anything is done, so that no action goes unrecorded."""

    @property
    def context(self) -> ManifestContext:
        return self.wanted.context

    def has_waited(self, clock: str, seconds: float) -> bool:
        """Whether so long has passed on a clock, which goes on."""
        self.clocks.add(clock)
        return self.waited.get(clock, 0.0) >= seconds

    def owns(self, found: ObservedObject) -> bool:
        return found.owner == self.context.owner.uid

    def delete(self, *objects: ObservedObject) -> bool:
        """Deletes what this controller's Job owns, and whether there is any; another controller's objects are left
        alone."""
        own = [Delete(each.kind, each.name, each.uid) for each in objects if self.owns(each)]
        self.actions += own
        return bool(own)

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """An Event."""
        self.events.append(ControllerEvent(reason, message, warning))

    def warn(self, reason: str, message: str) -> None:
        """A message that goes out as an Event too."""
        self.message = message
        self.tell(reason, message, warning=True)

    def record(self, **changes: object) -> None:
        """Changes of the ledger."""
        self.ledger = self.ledger.model_copy(update=changes)
