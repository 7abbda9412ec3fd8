"""Inject every fault of docs/reliability.md, count what became of it, and print the page's table.

    python -m benchmarks.faults [--only NAME ...] [--points N] [--root FOLDER]

The tests that carry `pytest.mark.fault` inject; here they try many points instead of few. What passed is kept in
FOLDER/results.jsonl and not run again, so a run that was stopped goes on; delete the file to begin anew.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.counting import FAULTS, NAMES, ONLY, POINTS, RESULTS, read_results

ROOT = Path(__file__).resolve().parents[2]
COUNTED = ("tried", "survived", "lost", "duplicated", "wrong", "paid_again", "in_flight")


def totals_of(results: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """By fault: its counts over all tests. What no test of a fault counted is None."""
    totals = {}
    for number in sorted({result["fault"] for result in results}):
        own = [result for result in results if result["fault"] == number]
        summed: Counter[str] = Counter()
        for result in own:
            summed.update({name: result.get(name, 0) for name in COUNTED})
        counted = {name for result in own for name in result}
        totals[number] = {
            **{name: summed[name] if name in counted else None for name in COUNTED},
            "tests": len(own),
            "failed": sum(not result["passed"] for result in own),
        }
    return totals


def table(totals: Mapping[int, Mapping[str, Any]]) -> str:
    lines = [
        "| | fault | tried | survived | lost | duplicated | wrong | judge calls paid again (in flight) | tests |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number, total in totals.items():
        cells = ["" if total[name] is None else f"{total[name]:,}" for name in COUNTED]
        paid = f"{cells[5]} ({cells[6]})" if cells[5] else ""
        row = [str(number), FAULTS[number].what, *cells[:5], paid, str(total["tests"])]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def inject(file: Path, only: Sequence[str], points: int) -> int:
    """Run the tests that inject; their words go to stderr."""
    numbers = [str(NAMES[name]) for name in only]
    settings = {RESULTS: str(file), ONLY: ",".join(numbers), POINTS: str(points)}
    places = ["tests/unit", "tests/integration", *(["tests/cluster"] if os.environ.get("KUBECONFIG") else [])]
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-rfE", *places]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, stdout=sys.stderr, check=False
    ).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--points", type=int, default=0, help="tries of every fault; left out: those of the page"
    )
    parser.add_argument("--root", type=Path, default=ROOT / "runs" / "faults")
    options = parser.parse_args()
    file = options.root.resolve() / (
        "results.jsonl" if not options.points else f"results-{options.points}.jsonl"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    code = inject(file, options.only, options.points)
    totals = totals_of(read_results(file))
    print(table(totals))
    # 5: nothing was left to inject.
    raise SystemExit(code not in (0, 5) or any(total["failed"] for total in totals.values()))


if __name__ == "__main__":
    main()
