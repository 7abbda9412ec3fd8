"""Compares every reward design in a simulator: `python -m benchmarks.ranking [--groups N] [--sizes 4 8 16]`.

Prints, per group size, fidelity to latent quality against judge calls with standard errors, the same for a judge of
which 15 % of the calls fail, and whether the goals of the project hold. Writes the plots to --output. Exit code 1 when
a goal does not hold.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.line_chart import Lines, Point, draw_lines
from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.simulator.designs import SimulatedJudge, designs, run
from benchmarks.simulator.fidelity import Estimate, Fidelity, check_goals, measure, pareto_front
from scope_selfplay.base.values import numpy_rng_from


def main() -> int:
    options = read_options(__doc__, groups=1200, sizes=[4, 8, 16], seed=0, output=Path("bench-out"))
    judge = SimulatedJudge()
    by_size = {n: simulate(n, judge, options.groups, options.seed) for n in options.sizes}
    failing = simulate(8, replace(judge, failure=0.15), options.groups, options.seed)
    for n, results in by_size.items():
        print(f"## Groups of {n}\n\n{table(results)}\n")
    print(f"## Groups of 8, 15 % of the calls fail\n\n{table(failing)}\n")
    goals = check_goals({n: _by_name(results) for n, results in by_size.items()}, _by_name(failing))
    rows = [[goal.claim, goal.measured, "yes" if goal.holds else "no"] for goal in goals]
    print(f"## Goals\n\n{markdown([['claim', 'measured', 'holds'], *rows])}")
    options.output.mkdir(parents=True, exist_ok=True)
    taus = draw("Kendall tau with latent quality", by_size, lambda result: result.tau)
    (options.output / "ranking-tau.svg").write_text(taus, encoding="utf-8")
    title = "Correlation of advantages with latent quality"
    correlations = draw(title, by_size, lambda result: result.correlation)
    (options.output / "ranking-advantages.svg").write_text(correlations, encoding="utf-8")
    return 0 if all(goal.holds for goal in goals) else 1


def simulate(n: int, judge: SimulatedJudge, groups: int, seed: int) -> list[Fidelity]:
    """Every design for groups of n, all on the same latent qualities, drawn from N(0, 1)."""
    qualities = numpy_rng_from("qualities", seed, n).standard_normal((groups, n)).tolist()
    results = []
    for design in designs(n):
        results.append(measure(design.name, run(design, qualities, judge, seed), qualities))
        print(f"N={n} {design.name}", file=sys.stderr)
    return results


def table(results: Sequence[Fidelity]) -> str:
    rows = [["design", "calls", "answers", "waves", "Kendall tau", "advantage correlation"]]
    for each in results:
        costs = [f"{value:.0f}" for value in (each.calls, each.answers, each.waves)]
        rows.append([each.name, *costs, str(each.tau), str(each.correlation)])
    return markdown(rows)


def draw(title: str, by_size: Mapping[int, Sequence[Fidelity]], value: Callable[[Fidelity], Estimate]) -> str:
    """`balanced` with and without levels, and the Pareto front of all other designs, by calls."""

    def line(results: Iterable[Fidelity]) -> list[Point]:
        front = pareto_front(list(results), lambda result: value(result).value)
        found = [(each.calls, *value(each)) for each in front]
        return [Point(calls, mean, mean - 2 * error, mean + 2 * error) for calls, mean, error in found]

    def lines(results: Sequence[Fidelity]) -> Lines:
        margins = [each for each in results if each.name.startswith("balanced, margins")]
        levels = [each for each in results if each.name.startswith("balanced") and each not in margins]
        others = [each for each in results if not each.name.startswith("balanced")]
        parts = {"balanced": levels, "balanced, margins": margins, "the best of all other designs": others}
        return {name: line(part) for name, part in parts.items()}

    panels = {f"groups of {n}": lines(results) for n, results in by_size.items()}
    return draw_lines(title, panels, "judge calls")


def _by_name(results: Iterable[Fidelity]) -> dict[str, Fidelity]:
    return {result.name: result for result in results}


if __name__ == "__main__":
    sys.exit(main())
