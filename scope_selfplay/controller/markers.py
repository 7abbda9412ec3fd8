"""What the shared volume says about a run: which stages are done, and which Solvers were promoted."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from scope_selfplay.controller.goals import Markers
from scope_selfplay.controller.names import RunStep
from scope_selfplay.errors import RecordError, StorageError
from scope_selfplay.store import RunFolder, Stage, StageManifest
from scope_selfplay.store.folders import MANIFEST
from scope_selfplay.store.ratings import Ratings, read_ratings


def read_markers(folder: RunFolder, steps: Iterable[RunStep]) -> Markers:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest that is none, StorageError when the volume cannot be read.
    """
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path / MANIFEST, step))
    ratings: list[Ratings] = []
    while RunStep(len(ratings), Stage.COMPARE) in done:
        ratings.append(read_ratings(folder, len(ratings)))
    return Markers(done, tuple(ratings))


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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); see that the volume is well"
        ) from error
