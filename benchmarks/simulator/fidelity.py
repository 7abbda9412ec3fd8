"""How well strengths and rewards follow latent quality, with standard errors over groups; which designs are worth their
calls, and whether the goals of the project hold.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.designs import Quality, Trial

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


class Gain(NamedTuple):
    """What one design has over another on the same groups."""

    tau: Estimate
    correlation: Estimate


@dataclass(frozen=True)
class Fidelity:
    """One design over all groups; calls, answers shown in them, and waves are means per group.

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

    def gain_over(self, other: "Fidelity") -> Gain:
        """The errors are those of the paired difference."""
        difference = _correlation(self.moments.sum(axis=0)) - _correlation(other.moments.sum(axis=0))
        error = _jackknife(_left_out(self.moments) - _left_out(other.moments))
        return Gain(_mean(self.taus - other.taus), Estimate(float(difference), error))


def measure(name: str, trials: Sequence[Trial], qualities: Sequence[Quality]) -> Fidelity:
    truths = [np.asarray(quality, dtype=np.float64) for quality in qualities]
    verdicts = [
        (strength is not None, entrant in trial.judged)
        for trial in trials
        for entrant, strength in enumerate(trial.strengths)
    ]
    return Fidelity(
        name=name,
        calls=float(np.mean([trial.calls for trial in trials])),
        answers=float(np.mean([trial.answers for trial in trials])),
        waves=float(np.mean([trial.waves for trial in trials])),
        taus=np.array([_tau(trial, truth) for trial, truth in zip(trials, truths, strict=True)]),
        moments=np.array([_moments(trial, truth) for trial, truth in zip(trials, truths, strict=True)]),
        missing=sum(not has_strength for has_strength, _ in verdicts),
        unearned=sum(has_strength and not judged for has_strength, judged in verdicts),
    )


def _tau(trial: Trial, quality: Floats) -> float:
    """Kendall's tau-b; 0 when all strengths are equal."""
    judged = [entrant for entrant, strength in enumerate(trial.strengths) if strength is not None]
    if len(judged) < 2:
        return math.nan
    strengths = np.array([trial.strengths[entrant] for entrant in judged], dtype=np.float64)
    upper = np.triu_indices(len(judged), 1)
    order = np.sign(np.subtract.outer(strengths, strengths))[upper]
    truth = np.sign(np.subtract.outer(quality[judged], quality[judged]))[upper]
    decided = np.count_nonzero(order) * np.count_nonzero(truth)
    return float(order @ truth) / math.sqrt(decided) if decided else 0.0


def _moments(trial: Trial, quality: Floats) -> tuple[float, float, float]:
    judged = [entrant for entrant, reward in enumerate(trial.rewards) if reward is not None]
    if not judged:
        return 0.0, 0.0, 0.0
    rewards = np.array([trial.rewards[entrant] for entrant in judged], dtype=np.float64)
    spread = rewards.std()
    advantages = (rewards - rewards.mean()) / spread if spread > 0.0 else np.zeros(len(judged))
    centred = quality[judged] - quality[judged].mean()
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
