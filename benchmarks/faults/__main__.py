"""Inject every fault of docs/operate/reliability.md, count what became of it, and print the page's table.

    python -m benchmarks.faults [--only NAME ...] [--points N] [--root FOLDER] [--page FILE]

The tests that carry `pytest.mark.fault` inject; here they try many points instead of few. What passed is kept in
FOLDER/results.jsonl and not run again, so a run that was stopped goes on; delete the file to begin anew.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.counting import FAULTS, NAMES, ONLY, POINTS, RESULTS, read_results
from benchmarks.markdown import write_between
from benchmarks.options import read_options
from benchmarks.scope_command import ROOT

COUNTED = ("tried", "survived", "lost", "duplicated", "wrong", "paid_again", "in_flight")


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """By fault: its counts over all tests; empty is what no test of a fault counted."""
    lines = [
        "| | fault | tried | survived | lost | duplicated | wrong | judge calls paid again (in flight) | tests |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number in sorted({result["fault"] for result in results}):
        own = [result for result in results if result["fault"] == number]
        counts = {name: [result[name] for result in own if name in result] for name in COUNTED}
        *cells, paid, in_flight = (f"{sum(found):,}" if found else "" for found in counts.values())
        again = f"{paid} ({in_flight})" if paid else ""
        lines.append(f"| {' | '.join([str(number), FAULTS[number].what, *cells, again, str(len(own))])} |")
    return "\n".join(lines)


def main() -> None:
    """`--points`: tries of every fault; left out: those of the page. `--page` gets the table between its marks."""
    options = read_options(
        __doc__, choices={"only": list(NAMES)}, points=0, root=ROOT / "runs" / "faults", page=None
    )
    file = options.root.resolve() / f"results{f'-{options.points}' if options.points else ''}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = ",".join(str(NAMES[name]) for name in options.only)
    settings = {RESULTS: str(file), ONLY: numbers, POINTS: str(options.points)}
    places = ["tests/unit", "tests/integration", *(["tests/cluster"] if os.environ.get("KUBECONFIG") else [])]
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-rfE", *places]
    # The words of the tests go to stderr.
    environment = os.environ | settings
    code = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False).returncode
    results = read_results(file)
    print(table(results))
    if options.page is not None:
        write_between(options.page, "faults", table(results))
    # 5: nothing was left to inject.
    raise SystemExit(code not in (0, 5) or any(not result["passed"] for result in results))


if __name__ == "__main__":
    main()
