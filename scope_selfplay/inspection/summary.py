"""`summary.json`: what a run has done so far, from its folders alone."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, CandidateStatus
from scope_selfplay.store import Stage, StageFolder, StageManifest, read_records
from scope_selfplay.store.jsonl import read_rows
from scope_selfplay.store.ratings import has_ratings, read_ratings

_BARS = "▁▂▃▄▅▆▇█"
_TELLING = {"challenger": ("difficulty", "reward"), "solver": ("rubric", "non_zero_advantage", "reward")}
"""What tells most about a role's steps, the best first: rewards by comparison need no grades and log none."""


def summarise(run: Run) -> dict[str, object]:
    """The funnel, reward curves and comparison of each iteration, and the held-out table in the order S_0, S_1, ..."""
    done = [number for number in range(1, run.config.iterations + 1) if _manifest(run, number, Stage.COMPARE)]
    rated = [number for number in (0, *done) if has_ratings(run.folder, number)]
    held_out = read_ratings(run.folder, rated[-1]).held_out if rated else {}
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


def _iteration(run: Run, iteration: int) -> dict[str, Any]:
    folders = {stage: run.folder.stage(iteration, stage) for stage in Stage}
    candidates = read_records(folders[Stage.TASKS].candidates, Candidate)
    rejected = Counter(
        each.reason.value for each in candidates if each.status is not CandidateStatus.ACCEPTED
    )
    accepted = [each for each in candidates if each.status is CandidateStatus.ACCEPTED]
    means = [each.mean for each in accepted if each.mean is not None]
    ratings = read_ratings(run.folder, iteration) if has_ratings(run.folder, iteration) else None
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


def show_summary(summary: dict[str, Any], run: Run) -> None:
    """Print a run's summary to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    for iteration in summary["iterations"]:
        _show_iteration(console, iteration)
    _show_held_out(console, summary)
    _show_next(console, summary, run)


def sparkline(values: list[float], low: float = 0.0, high: float = 1.0) -> str:
    """One bar a value, from `low` to `high`."""
    if high <= low:
        return ""
    steps = [int((value - low) / (high - low) * len(_BARS)) for value in values]
    return "".join(_BARS[max(0, min(step, len(_BARS) - 1))] for step in steps)


def _show_iteration(console: Any, iteration: dict[str, Any]) -> None:
    console.print(f"\n[bold]Iteration {iteration['iteration']}[/bold]")
    rejected = ", ".join(f"{reason} {count}" for reason, count in iteration["rejected"].items())
    console.print(
        f"  tasks       {iteration['candidates']} candidates -> {iteration['accepted']} accepted ({rejected})"
    )
    if iteration["mean_score"] is not None:
        console.print(
            f"              mean score of the accepted tasks {iteration['mean_score']:.2f}; 0.5 teaches most"
        )
    for role, parts in _TELLING.items():
        curve = iteration[role]
        # None where no step had a value, as when the judge was away.
        part = next((each for each in parts if curve[f"{each}_first"] is not None), None)
        if part is not None:
            first, last, values = (curve[f"{part}_{name}"] for name in ("first", "last", "curve"))
            # Shares lie between 0 and 1; a reward has the scale of its design.
            scale = (min(values), max(values)) if part == "reward" else (0.0, 1.0)
            bars = sparkline(values, *scale)
            console.print(
                f"  {role:<11} {part.replace('_', ' '):<10} {first:.2f} -> {last:.2f}  {bars}".rstrip()
            )
    if iteration["decision"]:
        ruling = iteration["decision"]
        console.print(f"  compare     {ruling['decision']}: {ruling['reason']}", soft_wrap=True, markup=False)
    judge = iteration["judge"]
    seconds = sum(iteration["seconds"].values())
    console.print(
        f"  judge       {judge['calls']:,} verdicts, {judge['failed']} failed; {seconds:.0f} s in all"
    )


def _show_held_out(console: Any, summary: dict[str, Any]) -> None:
    from rich.table import Table

    held_out = summary["held_out"]
    if not held_out:
        return
    groups = list(next(iter(held_out.values()))["groups"])
    table = Table(title="Held-out tasks: share of the rubric met, with 95 % intervals", title_justify="left")
    table.add_column("Solver")
    for group in groups:
        table.add_column(group, justify="right")
    for name, found in held_out.items():
        cells = [_cell(found["groups"].get(group)) for group in groups]
        table.add_row(name, *cells)
    console.print()
    console.print(table)
    count = next(iter(held_out.values()))["tasks"]
    console.print(
        f"{count} tasks from documents that no policy was trained on; S_0 is where training started."
    )


def _cell(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['mean_score']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _show_next(console: Any, summary: dict[str, Any], run: Run) -> None:
    folder = run.folder
    last = len(summary["iterations"])
    console.print(f"\n[bold]Where things are[/bold]  {folder.path}/")
    console.print("  corpus.jsonl                     the documents of this run")
    if last:
        _show_folders(console, last)
    console.print("  summary.json                     these numbers")
    console.print("\n[bold]What next[/bold]")
    again = f"scope run --config {folder.config} --root {folder.path.parent} --set iterations={last + 1}"
    again += "".join(f" --set {change}" for change in _going_on(run, last))
    console.print(f"  {again}   one more iteration", soft_wrap=True)
    console.print("  scope run --name other --seed 1   another seed, another run")
    console.print("  scope config                      every setting and its value")


def _going_on(run: Run, last: int) -> list[str]:
    """What the run's own config says against another iteration: with it the command would return at once."""
    changes = [] if run.config.stop_after is None else ["stop_after=null"]
    if last and run.stopped(last):
        changes += ["compare.stop=never", "compare.patience=null"]
    return changes


def _show_folders(console: Any, last: int) -> None:
    console.print(
        f"  iteration-{last:02d}/tasks/             candidates, rollouts and grades, one JSON object a line"
    )
    console.print(f"  iteration-{last:02d}/solver/checkpoint/ the trained Solver, a Hugging Face directory")
