"""Compares every reward design in a simulator: `python -m benchmarks.ranking [--groups N] [--sizes 4 8 16]`.

Prints, per group size, fidelity to latent quality against judge calls with standard errors (a star marks the Pareto
front), the same for a judge of which 15 % of the calls fail, and whether the project's goals hold. Writes the plots and
all numbers to --output. Exit code 1 when a goal does not hold.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.simulator.chart import draw_front
from benchmarks.simulator.designs import designs, run
from benchmarks.simulator.fidelity import Fidelity, measure
from benchmarks.simulator.goals import Goal, check_goals, pareto_front
from benchmarks.simulator.judge import SimulatedJudge
from scope_selfplay.keys import numpy_rng_from

# Kendall tau and advantage correlation in the simulation that the goals were set from (600 groups a cell).
EARLIER = {
    "round robin": (0.717, 0.825),
    "anchor, own scores": (0.589, 0.705),
    "single elimination, own scores": (0.618, 0.741),
    "double elimination, own scores": (0.598, 0.730),
    "Swiss": (0.589, 0.719),
    "live, Bradley-Terry": (0.522, 0.686),
    "live, margins": (0.593, 0.763),
    "groups of 2, M=4": (0.537, 0.677),
    "rubric, 5 criteria": (0.666, 0.775),
    "balanced, margins, 18 calls": (0.623, 0.781),
    "balanced, margins, 28 calls": (0.687, 0.836),
    "balanced, margins, 56 calls": (0.761, 0.899),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    judge = SimulatedJudge()
    by_size = {n: simulate(n, judge, options.groups, options.seed) for n in options.sizes}
    failing = simulate(8, replace(judge, failure=0.15), options.groups, options.seed)
    goals = check_goals({n: _by_name(results) for n, results in by_size.items()}, _by_name(failing))
    print(f"{options.groups} groups a cell, judge: {json.dumps(asdict(judge))}")
    for n, results in by_size.items():
        print(f"\n## Groups of {n}\n\n{table(results, EARLIER if n == 8 else {})}")
    print(f"\n## Groups of 8, 15 % of the calls fail\n\n{table(failing, {})}\n\n## Goals\n")
    for goal in goals:
        print(f"[{'x' if goal.holds else ' '}] {goal.claim}: {goal.measured}")
    write(options.output, by_size, failing, goals)
    return 0 if all(goal.holds for goal in goals) else 1


def simulate(n: int, judge: SimulatedJudge, groups: int, seed: int) -> list[Fidelity]:
    """Every design for groups of n, all on the same latent qualities, drawn from N(0, 1)."""
    qualities = numpy_rng_from("qualities", seed, n).standard_normal((groups, n)).tolist()
    results = []
    for design in designs(n):
        start = time.perf_counter()
        results.append(measure(design.name, design.ours, run(design, qualities, judge, seed), qualities))
        print(f"N={n} {design.name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return results


def table(results: Sequence[Fidelity], earlier: dict[str, tuple[float, float]]) -> str:
    """One line per design; stars mark the Pareto fronts of tau and of the correlation."""
    fronts = [
        {result.name for result in pareto_front(results, lambda result: result.tau.value)},
        {result.name for result in pareto_front(results, lambda result: result.correlation.value)},
    ]
    lines = [
        f"{'design':30} {'calls':>6} {'answers':>7} {'waves':>5} {'Kendall tau':>14}  {'correlation':>14}"
        f"  {'flat':>5}  (earlier)",
        "-" * 100,
    ]
    for result in results:
        stars = ["*" if result.name in front else " " for front in fronts]
        known = earlier.get(result.name)
        lines.append(
            f"{result.name:30} {result.calls:6.1f} {result.answers:7.1f} {result.waves:5.1f} "
            f"{result.tau!s:>14}{stars[0]} {result.correlation!s:>14}{stars[1]} {result.flat:6.1%}"
            + ("" if known is None else f"  ({known[0]:.3f} {known[1]:.3f})")
        )
    return "\n".join(lines)


def write(
    folder: Path,
    by_size: dict[int, list[Fidelity]],
    failing: Sequence[Fidelity],
    goals: Sequence[Goal],
) -> None:
    """ranking-tau.svg, ranking-advantages.svg and ranking.json."""
    folder.mkdir(parents=True, exist_ok=True)
    taus = draw_front("Kendall tau with latent quality", by_size, lambda result: result.tau)
    advantages = draw_front(
        "Correlation of advantages with latent quality", by_size, lambda result: result.correlation
    )
    (folder / "ranking-tau.svg").write_text(taus, encoding="utf-8")
    (folder / "ranking-advantages.svg").write_text(advantages, encoding="utf-8")
    record = {
        "sizes": {str(n): [_row(result) for result in results] for n, results in by_size.items()},
        "failing": [_row(result) for result in failing],
        "goals": [goal._asdict() for goal in goals],
    }
    (folder / "ranking.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {folder}: ranking-tau.svg, ranking-advantages.svg, ranking.json", file=sys.stderr)


def _row(result: Fidelity) -> dict[str, object]:
    return {
        "design": result.name,
        "calls": result.calls,
        "answers": result.answers,
        "waves": result.waves,
        "tau": result.tau._asdict(),
        "correlation": result.correlation._asdict(),
        "flat": result.flat,
    }


def _by_name(results: Iterable[Fidelity]) -> dict[str, Fidelity]:
    return {result.name: result for result in results}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ranking", description="Reward designs in a simulator."
    )
    parser.add_argument("--groups", type=int, default=1200, help="groups per cell")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16], help="entrants per group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("bench-out"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
