"""`summary.json`, and what a person reads after `scope run`: funnel, curves, held-out table, what to do next."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_selfplay.health.checkup import examine
from scope_selfplay.health.costs import judge_account
from scope_selfplay.health.signals import HealthWarning
from scope_selfplay.inspection.comparing import short_name, task_changes
from scope_selfplay.inspection.overview import accepted_means, stage_seconds, task_counts, training_curves
from scope_selfplay.inspection.text import warning_lines
from scope_selfplay.progress import first_and_last
from scope_selfplay.run import Run
from scope_selfplay.schedule import stages_of
from scope_selfplay.schemas import CandidateStatus
from scope_selfplay.store import Stage
from scope_selfplay.store.forks import read_fork
from scope_selfplay.store.ratings import has_ratings, kept_solver, read_ratings
from scope_selfplay.store.reader import RunReader
from scope_selfplay.untrusted_text import printable

_BARS = "▁▂▃▄▅▆▇█"
_MOST_TELLING = {"challenger": ("difficulty", "reward"), "solver": ("rubric", "non_zero_advantage", "reward")}
"""What tells most about a role's steps, the best first: rewards by comparison need no grades and log none."""


def summarise(run: Run) -> dict[str, object]:
    """The funnel, reward curves and comparison of each iteration, the held-out table in the order S_0, S_1, ..., and
    what health warns of, with the tasks behind it.
    """
    with RunReader(run.folder.path) as reader:
        finished = {(state.iteration, state.stage) for state in reader.stages() if state.manifest}
        numbers = range(1, run.config.iterations + 1)
        done = [number for number in numbers if (number, Stage.COMPARE) in finished]
        iterations = [_iteration(reader, number) | _planned(run, number) for number in done]
        checkups = [checkup for checkup in examine(reader) if checkup.iteration in done]
    rated = [number for number in (0, *done) if has_ratings(run.folder, number)]
    held_out = read_ratings(run.folder, rated[-1]).held_out if rated else {}
    fork, kept = read_fork(run.folder), kept_solver(run.folder)
    return {
        "run": run.config.name,
        "config_hash": run.config.hash,
        "prompt_hash": run.pack.hash,
        "iterations": iterations,
        "held_out": {
            name: groups["all"].model_dump()
            | {"groups": {group: estimate.model_dump() for group, estimate in groups.items()}}
            for name, groups in held_out.items()
            if "all" in groups
        },
        **({"kept": kept.model_dump(mode="json")} if kept else {}),
        **({"judge_noise": run.config.judge.noise.description} if run.config.judge.noise.total else {}),
        "warnings": [found.model_dump(mode="json") for checkup in checkups for found in checkup.warnings],
        **({"shared": fork.model_dump(mode="json", include={"run", "after"})} if fork else {}),
    }


def _iteration(reader: RunReader, iteration: int) -> dict[str, Any]:
    counts = task_counts(reader, iteration)
    rejected: Counter[str] = Counter()
    for count in counts:
        if count.status is not CandidateStatus.ACCEPTED:
            rejected[count.reason.value] += count.count
    candidates = sum(count.count for count in counts)
    ratings = read_ratings(reader.folder, iteration) if has_ratings(reader.folder, iteration) else None
    judge = Counter({"calls": 0, "unreadable": 0, "failed": 0})
    for stage in Stage:
        judge.update(judge_account(reader, iteration, stage))
    return {
        "iteration": iteration,
        "candidates": candidates,
        "rejected": dict(rejected.most_common()),
        "accepted": candidates - rejected.total(),
        "mean_score": _mean(accepted_means(reader, iteration)),
        "challenger": _curves(reader, iteration, Stage.CHALLENGER, ("reward", "difficulty")),
        "solver": _curves(reader, iteration, Stage.SOLVER, ("reward", "rubric", "non_zero_advantage")),
        "compare": ratings.ratings if ratings else {},
        "decision": {"decision": ratings.decision, "reason": ratings.reason} if ratings else {},
        "judge": dict(judge),
        "seconds": stage_seconds(reader, iteration),
    }


def _planned(run: Run, iteration: int) -> dict[str, Any]:
    """What an iteration was to reach: tasks that it was to accept, and steps of the Solver."""
    made = (iteration, Stage.TASKS) in stages_of(run.config)
    return {"target": run.config.tasks.target if made else None, "solver_steps": run.config.solver.steps}


def _curves(reader: RunReader, iteration: int, stage: Stage, names: Sequence[str]) -> dict[str, Any]:
    """Means over the first and last quarter of the steps, and the whole curves."""
    curves = {curve.name: curve.values for curve in training_curves(reader, iteration, stage)}
    found: dict[str, Any] = {"steps": len(reader.metrics(iteration, stage))}
    for name in names:
        values = curves.get(name, ())
        found[f"{name}_first"], found[f"{name}_last"] = first_and_last(values) or (None, None)
        found[f"{name}_curve"] = [round(value, 4) for value in values]
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def show_summary(summary: dict[str, Any], run: Run) -> None:
    """Print a run's summary to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    if "judge_noise" in summary:
        console.print(
            f"[bold red]The judge errs on purpose[/bold red]  {summary['judge_noise']}; the scores below are by such "
            "verdicts (judge.noise)",
            soft_wrap=True,
        )
    for iteration in summary["iterations"]:
        _show_iteration(console, iteration)
    _show_held_out(console, summary)
    show_example(console, list(summary["held_out"]), run.folder.path)
    _show_warnings(console, summary)
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
    if iteration["accepted"] < (iteration.get("target") or 0):
        console.print(
            f"  [bold red]below target[/bold red] {iteration['accepted']} of {iteration['target']} tasks, so the "
            f"Solver trained {iteration['solver']['steps']} of {iteration['solver_steps']} steps",
            soft_wrap=True,
        )
    if iteration["mean_score"] is not None:
        console.print(
            f"              mean score of the accepted tasks {iteration['mean_score']:.2f}; 0.5 teaches most"
        )
    for role, parts in _MOST_TELLING.items():
        curve = iteration[role]
        # None where no step had a value, as when the judge could not be reached.
        part = next((name for name in parts if curve[f"{name}_first"] is not None), None)
        if part is not None:
            first, last, values = (curve[f"{part}_{name}"] for name in ("first", "last", "curve"))
            # Shares are between 0 and 1; a reward has the scale of its design.
            scale = (min(values), max(values)) if part == "reward" else (0.0, 1.0)
            bars = sparkline(values, *scale)
            console.print(
                f"  {role:<11} {part.replace('_', ' '):<10} {first:.2f} -> {last:.2f}  {bars}".rstrip()
            )
    if iteration["decision"]:
        decision = iteration["decision"]
        console.print(
            f"  compare     {decision['decision']}: {decision['reason']}", soft_wrap=True, markup=False
        )
    judge = iteration["judge"]
    console.print(f"  judge       {judge['calls']:,} verdicts, {judge['failed']} failed")
    spent = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in iteration["seconds"].items())
    console.print(f"  time        {sum(iteration['seconds'].values()):.0f} s ({spent})")


def _with_interval(score: dict[str, Any]) -> str:
    interval = "" if score["low"] is None else f" [{score['low']:.2f}, {score['high']:.2f}]"
    return f"{score['mean_score']:.2f}{interval}"


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
        scores = [found["groups"].get(group) for group in groups]
        cells = [_with_interval(score) if score else "-" for score in scores]
        table.add_row(name, *cells)
    console.print()
    console.print(table)
    count = next(iter(held_out.values()))["tasks"]
    console.print(
        f"{count} tasks from documents that no policy was trained on; S_0 is where training started."
    )


def show_example(console: Any, names: Sequence[str], folder: Path) -> None:
    """One held-out task, and what the first and the last Solver said to it: the one whose score changed most."""
    with RunReader(folder) as reader:
        scores = reader.scores()
        answered = {short_name(score.checkpoint) for score in scores}
        if len(names) < 2 or not {names[0], names[-1]} <= answered:
            return
        changes = task_changes(reader, scores, names[0], names[-1])
        if not changes:
            return
        told = max(changes, key=lambda change: abs((change.after or 0.0) - (change.before or 0.0)))
        answers = {
            short_name(attempt.rollout.checkpoint): attempt.rollout.answer
            for attempt in reader.attempts_on(told.task_id)
            if attempt.stage is Stage.COMPARE
        }
    console.print("\n[bold]One held-out task[/bold]  (`scope tasks show` has them all)")
    console.print(f"  {_shortened(told.text)}", markup=False, soft_wrap=True)
    for name, score in ((names[0], told.before), (names[-1], told.after)):
        met = "not graded" if score is None else f"{score:.2f}"
        said = _shortened(answers.get(name) or "no answer")
        console.print(f"  {name} ({met}): {said}", markup=False, soft_wrap=True)


def _shortened(text: str, most: int = 400) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[:most]}..."


def _show_warnings(console: Any, summary: dict[str, Any]) -> None:
    warnings = [HealthWarning.model_validate(found) for found in summary["warnings"]]
    if warnings:
        console.print("\n[bold red]Warnings[/bold red] about the health of the self-play")
        for line in warning_lines(warnings):
            console.print(line, soft_wrap=True, markup=False)


def _show_kept(console: Any, kept: dict[str, Any] | None, last: int) -> None:
    """Which Solver to use, and why it is not the newest one where it is not."""
    if kept is None:
        return
    where = f"{kept['checkpoint']}/" if kept["checkpoint"] else "the base model"
    line = f"  best/                            the Solver that was kept, {kept['solver']}: {where}"
    console.print(line, soft_wrap=True)
    if kept["iteration"] != last:
        why = f"not S_{last}: {kept['reason']}"
        console.print(f"                                   {why}", soft_wrap=True, markup=False)


def _show_next(console: Any, summary: dict[str, Any], run: Run) -> None:
    folder, last = run.folder, len(summary["iterations"])
    console.print(f"\n[bold]Where things are[/bold]  {folder.path}/")
    console.print("  corpus.jsonl                     the documents of this run")
    if last:
        stages = f"  iteration-{last:02d}/tasks/             "
        console.print(f"{stages} candidates, rollouts and grades, one JSON object a line", soft_wrap=True)
    _show_kept(console, summary.get("kept"), last)
    console.print("  summary.json                     these numbers")
    console.print("\n[bold]What next[/bold]")
    again = f"scope run --config {folder.config} --root {folder.path.parent} --set iterations={last + 1}"
    # What in the run's own config would end the command at once.
    if run.config.stop_after is not None:
        again += " --set stop_after=null"
    if last and run.stop_reason(last):
        again += " --set compare.stop=never --set compare.patience=null"
    console.print(f"  {again}   one more iteration", soft_wrap=True)
    console.print("  scope run --name other --seed 1   another seed, another run")
    console.print("  scope config                      every setting and its value")
