"""What a controller is to bring about, and what of it is done: the steps of a run against the volume."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import ManifestContext
from scope_selfplay.controller.names import RunStep
from scope_selfplay.errors import ExitCode, RecordError, StorageError
from scope_selfplay.store import RunFolder, Stage, StageManifest
from scope_selfplay.store.manifest import MANIFEST
from scope_selfplay.store.stages import stages_of


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
    """What the shared volume shows; `promoted[t]` and `stops[t]` are known for every compared iteration t."""

    done: frozenset[RunStep]
    """The steps whose manifest.json exists."""
    promoted: tuple[bool, ...]
    stops: tuple[str, ...] = ()
    """Why the comparison of iteration t ends the run; empty where it does not."""


def read_volume(folder: RunFolder, steps: Iterable[RunStep]) -> VolumeState:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest.json that is not a manifest, StorageError when the volume cannot be read.
    """
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path / MANIFEST, step))
    promoted: list[bool] = []
    stops: list[str] = []
    while RunStep(len(promoted), Stage.COMPARE) in done:
        path = folder.stage(len(promoted), Stage.COMPARE).path / "ratings.json"
        ruling = _ruling(path)
        promoted.append(bool(ruling["promoted"]))
        stops.append(str(ruling.get("reason") or path) if ruling.get("decision") == "stop" else "")
    return VolumeState(done, tuple(promoted), tuple(stops))


class Stop(NamedTuple):
    iteration: int
    message: str


def stop_of(config: RunConfig, volume: VolumeState) -> Stop | None:
    """Where a comparison ended the run; not where the settings have been changed to go on all the same."""
    if config.compare.stop == "never" and config.compare.patience is None:
        return None
    for iteration, reason in enumerate(volume.stops):
        if reason:
            return Stop(iteration, f"stopped after iteration {iteration}: {reason}")
    return None


def _is_done(path: Path, step: RunStep) -> bool:
    data = _read(path)
    if data is None:
        return False
    try:
        manifest = StageManifest.model_validate_json(data)
    except ValidationError as error:
        what = str(error).splitlines()[0]
        raise RecordError(f"{path}: not a manifest ({what}); remove the stage folder") from None
    if (manifest.iteration, manifest.stage) != (step.iteration, step.stage.value):
        raise RecordError(
            f"{path}: is the manifest of iteration {manifest.iteration} {manifest.stage}; remove the stage folder"
        )
    return True


def _ruling(path: Path) -> dict[str, Any]:
    try:
        ruling = json.loads(_read(path) or b"")
    except ValueError:
        ruling = None
    if not isinstance(ruling, dict) or "promoted" not in ruling:
        raise RecordError(f"{path}: does not say what was promoted; remove its stage folder")
    return ruling


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); see that the volume is well"
        ) from error
