"""A judge made of numbers: latent qualities in, noisy, position-biased, sometimes failing verdicts out."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.ranking.matches import Match
from scope_selfplay.schemas import Outcome

Quality = Sequence[float]
"""Latent quality per entrant of a group, in standard deviations of the population."""


@dataclass(frozen=True)
class SimulatedJudge:
    """In a call every answer shown gets a score: quality, position, the mood of the call, logistic noise.

    All scales are in standard deviations of the latent quality. `noise`: scale of the logistic noise of
    a score. `bias`: what the first place is worth over the last. `mood`: standard deviation of a shift
    that all scores of a call share. `grain`: scores are rounded to its multiples, so that some matches
    are ties. `failure`: probability that a call brings no verdict. `vagueness`: scale of the logistic
    noise on one binary criterion.
    """

    noise: float = 0.58
    bias: float = 0.8
    mood: float = 0.7
    grain: float = 0.5
    failure: float = 0.02
    vagueness: float = 0.55

    def compare(self, quality: Quality, match: Match, rng: random.Random) -> Outcome | None:
        """The two scores; None when the call fails."""
        scores = self._scores(quality, match, rng)
        return None if scores is None else Outcome(*scores)

    def order(self, quality: Quality, group: Sequence[int], rng: random.Random) -> list[int] | None:
        """A group from the best score to the worst, ties in the order shown; None when the call fails."""
        scores = self._scores(quality, group, rng)
        if scores is None:
            return None
        ranked = sorted(zip(scores, group, strict=True), key=lambda scored: scored[0], reverse=True)
        return [entrant for _, entrant in ranked]

    def grade(self, quality: float, thresholds: Sequence[float], rng: random.Random) -> float | None:
        """Share of the criteria met, of those with a verdict; a high threshold is a hard criterion."""
        met = [
            quality + self.vagueness * _logistic(rng) > threshold
            for threshold in thresholds
            if rng.random() >= self.failure
        ]
        return sum(met) / len(met) if met else None

    def _scores(self, quality: Quality, shown: Sequence[int], rng: random.Random) -> list[float] | None:
        if rng.random() < self.failure:
            return None
        mood, last = rng.gauss(0.0, self.mood), max(len(shown) - 1, 1)
        scores = (
            quality[entrant] + mood - self.bias * place / last + self.noise * _logistic(rng)
            for place, entrant in enumerate(shown)
        )
        return [self.grain * round(score / self.grain) for score in scores]


def _logistic(rng: random.Random) -> float:
    chance = rng.uniform(1e-12, 1 - 1e-12)
    return math.log(chance / (1 - chance))
