"""How far a training stage is, in one line for the status: read from the last rows of its metrics.jsonl."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import RunStage
from scope_selfplay.store import RunFolder, Stage, StageFolder

_TAIL = 64 * 1024
_RECENT = 5
"""Steps whose mean time says how long the rest takes."""


def training_progress(folder: RunFolder, config: RunConfig, step: RunStage) -> str:
    """Empty for a stage that does not train, or has not finished a step yet."""
    steps = {Stage.CHALLENGER: config.challenger.steps, Stage.SOLVER: config.solver.steps}.get(step.stage)
    rows = last_rows(folder.stage(*step).metrics) if steps else []
    if not rows or steps is None:
        return ""
    done = int(rows[-1].get("step", len(rows)))
    seconds = fmean([float(row.get("step_seconds") or 0.0) for row in rows[-_RECENT:]])
    left = max(0, steps - done) * seconds
    line = f"step {done} of {steps}, {seconds:.0f} s a step, about {_duration(left)} left"
    reward = rows[-1].get("reward")
    return f"{line}, reward {reward:.3f}" if isinstance(reward, int | float) else line


def room_note(folder: StageFolder) -> str:
    """What a stage said of too little room on the volume when it began."""
    try:
        return folder.room.read_text().strip()
    except OSError:
        return ""


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def last_rows(path: Path) -> list[dict[str, Any]]:
    """What cannot be read is left out: the line is for people, and the last row may be half written."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    whole = lines[1 if size > _TAIL else 0 : -1]
    rows = []
    for line in whole[-_RECENT:]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows.append(row)
    return [row for row in rows if isinstance(row, dict)]
