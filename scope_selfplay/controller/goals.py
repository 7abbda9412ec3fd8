"""What a controller is to bring about, and what of it is done: the steps of a run against the volume."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import ManifestContext
from scope_selfplay.controller.names import RunStep
from scope_selfplay.errors import ExitCode, RecordError, StorageError
from scope_selfplay.schedule import stages_of, stop_message
from scope_selfplay.store import RunFolder, Stage
from scope_selfplay.store.folders import MANIFEST, parse_manifest
from scope_selfplay.store.ratings import Ratings, read_ratings


class RunEnd(NamedTuple):
    """How a run ended: the controller's exit code, and why in one line."""

    code: ExitCode
    message: str


@dataclass(frozen=True)
class DesiredSteps:
    context: ManifestContext
    steps: tuple[RunStep, ...]
    """What this controller brings about, in order."""
    before: tuple[RunStep, ...] = ()
    """What must be done already."""
    edited: tuple[str, ...] = ()
    """Settings that changed since the run began, and `prompts`."""
    problem: RunEnd | None = None
    """What the API server or the volume refused for good."""


def steps_of(config: RunConfig) -> tuple[RunStep, ...]:
    """Every stage of a run, in order."""
    return tuple(RunStep(iteration, stage) for iteration, stage in stages_of(config))


def desired_steps(
    context: ManifestContext,
    *,
    only_iteration: int | None = None,
    edited: Sequence[str] = (),
    problem: RunEnd | None = None,
) -> DesiredSteps:
    """The whole run, or one iteration of it; iteration 1 brings the held-out tasks along."""
    steps = steps_of(context.config)
    if only_iteration is None:
        return DesiredSteps(context, steps, (), tuple(edited), problem)
    first = 0 if only_iteration == 1 else only_iteration
    own = tuple(step for step in steps if first <= step.iteration <= only_iteration)
    before = tuple(step for step in steps if step.iteration < first)
    return DesiredSteps(context, own, before, tuple(edited), problem)


class VolumeState(NamedTuple):
    """What the shared volume shows; `ratings[t]` is known for every compared iteration t."""

    done: frozenset[RunStep]
    """The steps whose manifest.json exists."""
    ratings: tuple[Ratings, ...] = ()

    @property
    def promoted(self) -> tuple[bool, ...]:
        return tuple(ratings.promoted for ratings in self.ratings)


def read_volume(folder: RunFolder, steps: Iterable[RunStep]) -> VolumeState:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest.json that is not a manifest, StorageError when the volume cannot be read.
    """
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path, step))
    ratings: list[Ratings] = []
    while RunStep(len(ratings), Stage.COMPARE) in done:
        ratings.append(read_ratings(folder, len(ratings)))
    return VolumeState(done, tuple(ratings))


def _is_done(folder: Path, step: RunStep) -> bool:
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


class Stop(NamedTuple):
    iteration: int
    message: str


def stop_of(config: RunConfig, volume: VolumeState) -> Stop | None:
    """Where a comparison ended the run; not where the settings have been changed to go on all the same."""
    for iteration, ratings in enumerate(volume.ratings):
        message = stop_message(config, iteration, ratings)
        if message is not None:
            return Stop(iteration, message)
    return None
