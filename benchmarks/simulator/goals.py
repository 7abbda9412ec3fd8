"""Which designs are worth their calls, and whether the goals of the project hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.simulator.fidelity import Estimate, Fidelity, Gain

Results = Mapping[str, Fidelity]
"""One size and one judge, by name of design."""


class Goal(NamedTuple):
    """One claim, what was measured for it, and whether it holds."""

    claim: str
    measured: str
    holds: bool


class _Duel(NamedTuple):
    n: int
    calls: int
    against: int
    tau: float | None
    correlation: float | None


# Balanced with so many calls against single elimination; None asks for equality.
_DUELS = [
    _Duel(8, 28, 28, 0.05, 0.07),
    _Duel(8, 18, 28, None, None),
    _Duel(4, 6, 12, None, None),
    _Duel(16, 42, 60, None, None),
]

# What ships against the paper's bracket, the one of `arenarl`, and against a bracket by margins; last, both sides by
# the same half of what a call says.
_SIDES = [
    ("balanced", "single elimination, own scores"),
    ("balanced", "single elimination"),
    ("balanced, margins", "single elimination"),
]


def pareto_front(results: Sequence[Fidelity], value: Callable[[Fidelity], float]) -> list[Fidelity]:
    """The designs that no other one beats with as few calls, by rising calls."""
    front: list[Fidelity] = []
    for result in sorted(results, key=lambda result: (result.calls, -value(result))):
        if not front or value(result) > value(front[-1]):
            front.append(result)
    return front


def check_goals(by_size: Mapping[int, Results], failing: Results) -> list[Goal]:
    """`failing`: eight entrants before a judge of which 15 % of the calls fail."""
    goals = [_duel(by_size[duel.n], duel, *side) for duel in _DUELS if duel.n in by_size for side in _SIDES]
    steady = failing["balanced, 28 calls"].tau
    unearned = sum(result.unearned for result in failing.values())
    missing = sum(result.missing for result in failing.values())
    return [
        *goals,
        Goal("N=8, 15 % failures: balanced, 28 calls, stays above .64 tau", str(steady), steady.value > 0.64),
        Goal(
            "N=8, 15 % failures: no strength for an entrant that was never judged",
            f"{unearned} with a strength, {missing} without",
            unearned == 0,
        ),
    ]


def _duel(results: Results, duel: _Duel, ours: str, theirs: str) -> Goal:
    gain = results[f"{ours}, {duel.calls} calls"].gain_over(results[theirs])
    assert round(results[theirs].calls) == duel.against
    wanted = "equals" if duel.tau is None else f"exceeds by {duel.tau} tau and {duel.correlation} correlation"
    return Goal(
        f"N={duel.n}: {ours}, {duel.calls} calls, {wanted}: {theirs}, {duel.against} calls",
        f"tau {_signed(gain.tau)}, correlation {_signed(gain.correlation)}",
        _reaches(gain, duel),
    )


def _reaches(gain: Gain, duel: _Duel) -> bool:
    """Equal is not behind by more than 0.02 or two standard errors."""
    pairs = ((gain.tau, duel.tau), (gain.correlation, duel.correlation))
    return all(
        estimate.value >= (-max(0.02, 2 * estimate.error) if least is None else least)
        for estimate, least in pairs
    )


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} ± {estimate.error:.3f}"
