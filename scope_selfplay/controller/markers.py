"""What the shared volume says about a run: which stages are done, and which Solvers were promoted."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scope_selfplay.controller.goals import Markers
from scope_selfplay.controller.names import RunStep
from scope_selfplay.errors import RecordError, StorageError
from scope_selfplay.store import RunFolder, Stage, StageManifest
from scope_selfplay.store.folders import MANIFEST


def read_markers(folder: RunFolder, steps: Iterable[RunStep]) -> Markers:
    """Reads small files only; whether outputs are whole is checked by the stage that needs them.

    Raises RecordError for a manifest that is none, StorageError when the volume cannot be read.
    """
    done = frozenset(step for step in steps if _is_done(folder.stage(*step).path / MANIFEST, step))
    promoted: list[bool] = []
    stops: list[str] = []
    while RunStep(len(promoted), Stage.COMPARE) in done:
        path = folder.stage(len(promoted), Stage.COMPARE).path / "ratings.json"
        ruling = _ruling(path)
        promoted.append(bool(ruling["promoted"]))
        stops.append(str(ruling.get("reason") or path) if ruling.get("decision") == "stop" else "")
    return Markers(done, tuple(promoted), tuple(stops))


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
