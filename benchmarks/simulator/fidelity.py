"""How well strengths and rewards follow latent quality, with standard errors over groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.designs import Trial
from benchmarks.simulator.judge import Quality

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
    there. `flat`: share of groups with equal rewards. `missing`: entrants without a strength;
    `unearned`: those with one that were never judged.
    """

    name: str
    ours: bool
    calls: float
    answers: float
    waves: float
    taus: Floats
    moments: Floats
    flat: float
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


def measure(name: str, ours: bool, trials: Sequence[Trial], qualities: Sequence[Quality]) -> Fidelity:
    truths = [np.asarray(quality, dtype=np.float64) for quality in qualities]
    verdicts = [
        (strength is not None, entrant in trial.judged)
        for trial in trials
        for entrant, strength in enumerate(trial.strengths)
    ]
    return Fidelity(
        name=name,
        ours=ours,
        calls=float(np.mean([trial.calls for trial in trials])),
        answers=float(np.mean([trial.answers for trial in trials])),
        waves=float(np.mean([trial.waves for trial in trials])),
        taus=np.array([_tau(trial, truth) for trial, truth in zip(trials, truths, strict=True)]),
        moments=np.array([_moments(trial, truth) for trial, truth in zip(trials, truths, strict=True)]),
        flat=float(np.mean([len(set(trial.rewards)) == 1 for trial in trials])),
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
