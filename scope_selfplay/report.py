"""What a person reads after `scope run`: funnel, curves, held-out table, where things are, what to do next."""

from typing import Any

from scope_selfplay.run import Run

_BARS = "▁▂▃▄▅▆▇█"
_TELLING = {"challenger": ("difficulty", "reward"), "solver": ("rubric", "non_zero_advantage", "reward")}
"""What tells most about a role's steps, the best first: rewards by comparison need no grades and log none."""


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
