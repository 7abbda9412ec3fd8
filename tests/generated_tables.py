"""Writes tables of docs/how from the code: `python -m tests.generated_tables`."""

from pathlib import Path

from benchmarks.markdown import markdown, write_between
from scope_selfplay.evaluation.benchmarks import BENCHMARKS
from scope_selfplay.evaluation.scorers import SCORERS
from scope_selfplay.report.signals import BOUNDS, Bounds

HOW = Path(__file__).parents[1] / "docs" / "how"
NEEDS = {"answers": "right answers", "criteria": "a rubric", "given": "an answer to compare with"}


def tables() -> dict[tuple[str, str], str]:
    """By page and mark."""
    asked = [["name", "what it is", "file", "scorers, the first one heads the leaderboard"]]
    for name, each in BENCHMARKS.items():
        asked.append([f"`{name}`", each.title, each.source, " ".join(f"`{it}`" for it in each.scorers)])
    scored = [["name", "what it says, 0 to 1", "needs", "asks a judge"]]
    for name, scorer in SCORERS.items():
        needs = NEEDS.get(scorer.needs, "nothing: scores what no other scorer can")
        scored.append([f"`{name}`", scorer.title, needs, "yes" if scorer.asks_judge else "no"])
    signals = [[each.title, _warning(each), each.meaning] for each in BOUNDS.values()]
    return {
        ("evaluation.md", "benchmarks"): markdown(asked),
        ("evaluation.md", "scorers"): markdown(scored),
        ("documents.md", "signals"): markdown([["signal", "warning", "what that often means"], *signals]),
    }


def _warning(bounds: Bounds) -> str:
    if bounds.low is None:
        return f"over {bounds.high:g}"
    return f"under {bounds.low:g}" if bounds.high is None else f"outside {bounds.low:g} to {bounds.high:g}"


if __name__ == "__main__":
    for (page, mark), table in tables().items():
        write_between(HOW / page, mark, table)
