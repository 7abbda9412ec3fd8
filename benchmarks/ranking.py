"""Compares every reward design in a simulator: `python -m benchmarks.ranking [--groups N] [--sizes 4 8 16]`.

Prints, per group size, fidelity to latent quality against judge calls with standard errors, the same for a judge of
which 15 % of the calls fail, and whether the goals of the project hold. Writes the plots to --output and the tables
into --page (docs/how/rewards.md). Exit code 1 when a goal does not hold.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.line_chart import Lines, Point, draw_lines
from benchmarks.markdown import markdown, write_between
from benchmarks.options import read_options
from benchmarks.simulator import Session, SimulatedJudge, designs, run
from scope_selfplay.base.values import numpy_rng_from

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """With its standard error over groups."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Fidelity:
    """How well one design follows latent quality; calls, answers shown in them, and waves are means per group.

    `taus` (groups,): Kendall's tau-b of strengths and quality, NaN for fewer than two judged entrants.
    `moments` (groups, 3): sums of advantage times quality, advantage squared and quality squared over
    the judged entrants; advantages are rewards standardised within the group, qualities are centred
    there. `missing`: entrants without a strength; `unearned`: those with one that
    were never judged.
    """

    name: str
    calls: float
    answers: float
    waves: float
    taus: Floats
    moments: Floats
    missing: int
    unearned: int

    @property
    def tau(self) -> Estimate:
        return _mean(self.taus)

    @property
    def correlation(self) -> Estimate:
        """Pearson's, over the samples of all groups together."""
        return Estimate(float(_correlation(self.moments.sum(axis=0))), _jackknife(_left_out(self.moments)))

    def gain_over(self, other: "Fidelity") -> tuple[Estimate, Estimate]:
        """In tau and in correlation, on the same groups; the errors are those of the paired difference."""
        difference = _correlation(self.moments.sum(axis=0)) - _correlation(other.moments.sum(axis=0))
        error = _jackknife(_left_out(self.moments) - _left_out(other.moments))
        return _mean(self.taus - other.taus), Estimate(float(difference), error)


Results = Mapping[str, Fidelity]
"""One size and one judge, by name of design."""


def main() -> int:
    asked = read_options(__doc__, groups=1200, sizes=[4, 8, 16], seed=0, output=Path("bench-out"), page=None)
    judge = SimulatedJudge()
    by_size = {n: simulate(n, judge, asked.groups, asked.seed) for n in asked.sizes}
    failing = simulate(8, replace(judge, failure=0.15), asked.groups, asked.seed)
    parts = [f"### Groups of {n}\n\n{table(results)}" for n, results in by_size.items()]
    parts += [f"### Groups of 8, 15 % of the calls fail\n\n{table(failing)}"]
    goals = check_goals(by_size, failing)
    rows = [[goal.claim, goal.measured, "yes" if goal.holds else "no"] for goal in goals]
    tables = "\n\n".join([*parts, f"### Goals\n\n{markdown([['claim', 'measured', 'holds'], *rows])}"])
    print(tables)
    if asked.page is not None:
        write_between(asked.page, "ranking", tables)
    asked.output.mkdir(parents=True, exist_ok=True)
    for name, title, value in (
        ("tau", "Kendall tau with latent quality", lambda result: result.tau),
        ("advantages", "Correlation of advantages with latent quality", lambda result: result.correlation),
    ):
        (asked.output / f"ranking-{name}.svg").write_text(draw(title, by_size, value), encoding="utf-8")
    return 0 if all(goal.holds for goal in goals) else 1


def simulate(n: int, judge: SimulatedJudge, groups: int, seed: int) -> Results:
    """Every design for groups of n, all on the same latent qualities, drawn from N(0, 1)."""
    qualities = numpy_rng_from("qualities", seed, n).standard_normal((groups, n)).tolist()
    results = {}
    for design in designs(n):
        results[design.name] = measure(design.name, run(design, qualities, judge, seed))
        print(f"N={n} {design.name}", file=sys.stderr)
    return results


def measure(name: str, sessions: Sequence[Session]) -> Fidelity:
    ranked = [{row for row, value in enumerate(each.strengths) if value is not None} for each in sessions]
    return Fidelity(
        name=name,
        calls=float(np.mean([session.calls for session in sessions])),
        answers=float(np.mean([session.answers for session in sessions])),
        waves=float(np.mean([session.waves for session in sessions])),
        taus=np.array([_tau(session) for session in sessions]),
        moments=np.array([_moments(session) for session in sessions]),
        missing=sum(session.n - len(known) for session, known in zip(sessions, ranked, strict=True)),
        unearned=sum(len(known - session.judged) for session, known in zip(sessions, ranked, strict=True)),
    )


def _known(values: Sequence[float | None], quality: Sequence[float]) -> tuple[Floats, Floats]:
    """Strengths or rewards, and the latent qualities, of the entrants that have one."""
    pairs = [(value, truth) for value, truth in zip(values, quality, strict=True) if value is not None]
    known = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def _tau(session: Session) -> float:
    """Kendall's tau-b; 0 when all strengths are equal."""
    strengths, quality = _known(session.strengths, session.quality)
    if len(strengths) < 2:
        return math.nan
    upper = np.triu_indices(len(strengths), 1)
    order, truth = (np.sign(np.subtract.outer(each, each))[upper] for each in (strengths, quality))
    decided = np.count_nonzero(order) * np.count_nonzero(truth)
    return float(order @ truth) / math.sqrt(decided) if decided else 0.0


def _moments(session: Session) -> tuple[float, float, float]:
    rewards, quality = _known(session.rewards, session.quality)
    if not len(rewards):
        return 0.0, 0.0, 0.0
    spread = rewards.std()
    advantages = (rewards - rewards.mean()) / spread if spread > 0.0 else np.zeros(len(rewards))
    centred = quality - quality.mean()
    return float(advantages @ centred), float(advantages @ advantages), float(centred @ centred)


def _mean(values: Floats) -> Estimate:
    known = values[~np.isnan(values)]
    return Estimate(float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known))))


def _correlation(moments: Floats) -> Floats:
    """Of rows of sums of products and squares, or of one such row."""
    product, advantage, quality = moments.T
    return np.asarray(product / np.sqrt(advantage * quality), dtype=np.float64)


def _left_out(moments: Floats) -> Floats:
    """The correlation without each group in turn."""
    return _correlation(moments.sum(axis=0) - moments)


def _jackknife(left_out: Floats) -> float:
    return float(np.sqrt((len(left_out) - 1) * left_out.var()))


def table(results: Results) -> str:
    rows = [["design", "calls", "answers", "waves", "Kendall tau", "advantage correlation"]]
    for each in results.values():
        costs = [f"{value:.0f}" for value in (each.calls, each.answers, each.waves)]
        rows.append([each.name, *costs, str(each.tau), str(each.correlation)])
    return markdown(rows)


def draw(title: str, by_size: Mapping[int, Results], value: Callable[[Fidelity], Estimate]) -> str:
    """`balanced` with and without levels, and the Pareto front of all other designs, by calls."""

    def front(results: Iterable[Fidelity]) -> list[Point]:
        """The designs that no other one beats with as few calls."""
        found: list[Point] = []
        for each in sorted(results, key=lambda result: (result.calls, -value(result).value)):
            mean, error = value(each)
            if not found or mean > found[-1].value:
                found.append(Point(each.calls, mean, mean - 2 * error, mean + 2 * error))
        return found

    def lines(results: Results) -> Lines:
        ours = {name: each for name, each in results.items() if name.startswith("balanced")}
        margins = [each for name, each in ours.items() if name.startswith("balanced, margins")]
        levels = [each for name, each in ours.items() if not name.startswith("balanced, margins")]
        others = [each for name, each in results.items() if name not in ours]
        parts = {"balanced": levels, "balanced, margins": margins, "the best of all other designs": others}
        return {name: front(part) for name, part in parts.items()}

    panels = {f"groups of {n}": lines(results) for n, results in by_size.items()}
    return draw_lines(title, panels, "judge calls")


class Goal(NamedTuple):
    """One claim, what was measured for it, and whether it holds."""

    claim: str
    measured: str
    holds: bool


class _Duel(NamedTuple):
    n: int
    calls: int
    against: int
    tau: float | None = None
    correlation: float | None = None


# Balanced with so many calls against single elimination; None asks for equality.
_DUELS = [_Duel(8, 28, 28, 0.05, 0.07), _Duel(8, 18, 28), _Duel(4, 6, 12), _Duel(16, 42, 60)]

# What ships against the paper's bracket, the one of `arenarl`, and against a bracket by margins; last, both sides by
# the same half of what a call says.
_SIDES = [
    ("balanced", "single elimination, own scores"),
    ("balanced", "single elimination"),
    ("balanced, margins", "single elimination"),
]


def check_goals(by_size: Mapping[int, Results], failing: Results) -> list[Goal]:
    """`failing`: eight entrants before a judge of which 15 % of the calls fail."""
    goals = [_duel(by_size[duel.n], duel, *side) for duel in _DUELS if duel.n in by_size for side in _SIDES]
    steady = failing["balanced, 28 calls"].tau
    unearned, missing = (
        sum(getattr(result, name) for result in failing.values()) for name in ("unearned", "missing")
    )
    claim, counts = (
        "no strength for an entrant that was never judged",
        f"{unearned} with a strength, {missing} without",
    )
    return [
        *goals,
        Goal("N=8, 15 % failures: balanced, 28 calls, stays above .64 tau", str(steady), steady.value > 0.64),
        Goal(f"N=8, 15 % failures: {claim}", counts, unearned == 0),
    ]


def _duel(results: Results, duel: _Duel, ours: str, theirs: str) -> Goal:
    """Equal is not behind by more than 0.02 or two standard errors."""
    gains = results[f"{ours}, {duel.calls} calls"].gain_over(results[theirs])
    assert round(results[theirs].calls) == duel.against
    wanted = "equals" if duel.tau is None else f"exceeds by {duel.tau} tau and {duel.correlation} correlation"
    tau, correlation = (f"{gain.value:+.3f} ± {gain.error:.3f}" for gain in gains)
    return Goal(
        f"N={duel.n}: {ours}, {duel.calls} calls, {wanted}: {theirs}, {duel.against} calls",
        f"tau {tau}, correlation {correlation}",
        all(
            gain.value >= (-max(0.02, 2 * gain.error) if least is None else least)
            for gain, least in zip(gains, (duel.tau, duel.correlation), strict=True)
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
