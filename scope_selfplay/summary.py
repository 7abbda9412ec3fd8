"""`summary.json`: what a run has done so far, from its folders alone."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scope_selfplay.evaluation.rating import Ratings
from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, CandidateStatus
from scope_selfplay.store import Stage, StageFolder, StageManifest, read_records
from scope_selfplay.store.jsonl import read_rows


def summarise(run: Run) -> dict[str, object]:
    """The funnel, reward curves and comparison of each iteration, and the held-out table in the order S_0, S_1, ..."""
    done = [number for number in range(1, run.config.iterations + 1) if _manifest(run, number, Stage.COMPARE)]
    ratings = [each for number in (0, *done) if (each := read_ratings(run, number)) is not None]
    held_out = ratings[-1].held_out if ratings else {}
    return {
        "run": run.config.name,
        "config_hash": run.config.hash,
        "prompt_hash": run.pack.hash,
        "iterations": [_iteration(run, number) for number in done],
        "held_out": {
            name: groups["all"].model_dump()
            | {"groups": {group: each.model_dump() for group, each in groups.items()}}
            for name, groups in held_out.items()
            if "all" in groups
        },
    }


def read_ratings(run: Run, iteration: int) -> Ratings | None:
    file = run.folder.stage(iteration, Stage.COMPARE).path / "ratings.json"
    return Ratings.model_validate_json(file.read_bytes()) if file.exists() else None


def _iteration(run: Run, iteration: int) -> dict[str, Any]:
    folders = {stage: run.folder.stage(iteration, stage) for stage in Stage}
    candidates = read_records(folders[Stage.TASKS].candidates, Candidate)
    rejected = Counter(
        each.reason.value for each in candidates if each.status is not CandidateStatus.ACCEPTED
    )
    accepted = [each for each in candidates if each.status is CandidateStatus.ACCEPTED]
    means = [each.mean for each in accepted if each.mean is not None]
    ratings = read_ratings(run, iteration)
    return {
        "iteration": iteration,
        "candidates": len(candidates),
        "rejected": dict(rejected.most_common()),
        "accepted": len(accepted),
        "mean_score": sum(means) / len(means) if means else None,
        "challenger": _curve(folders[Stage.CHALLENGER], "difficulty"),
        "solver": _curve(folders[Stage.SOLVER], "rubric", "non_zero_advantage"),
        "compare": ratings.ratings if ratings else {},
        "decision": {"decision": ratings.decision, "reason": ratings.reason} if ratings else {},
        "judge": _judge_account(list(folders.values())),
        "seconds": {
            stage.value: manifest.seconds
            for stage in Stage
            if (manifest := _manifest(run, iteration, stage)) is not None
        },
    }


def _curve(folder: StageFolder, *parts: str) -> dict[str, Any]:
    """Means over the first and last quarter of the steps, and the whole curves."""
    rows = read_rows(folder.metrics)
    found: dict[str, Any] = {"steps": len(rows)}
    for name in ("reward", *parts):
        values = [row[name] for row in rows if row.get(name) is not None]
        quarter = max(1, len(values) // 4)
        found[f"{name}_first"] = _mean(values[:quarter])
        found[f"{name}_last"] = _mean(values[-quarter:])
        found[f"{name}_curve"] = [round(value, 4) for value in values]
    return found


def _judge_account(folders: Sequence[StageFolder]) -> dict[str, int]:
    total = Counter({"calls": 0, "unreadable": 0, "failed": 0})
    for folder in folders:
        file = folder.path / "judge.json"
        if file.exists():
            total.update(json.loads(file.read_text()))
    return dict(total)


def _manifest(run: Run, iteration: int, stage: Stage) -> StageManifest | None:
    path = run.folder.stage(iteration, stage).path / "manifest.json"
    return StageManifest.model_validate_json(path.read_bytes()) if path.exists() else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
