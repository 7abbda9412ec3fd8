"""How well rewards follow latent quality: Kendall's tau and the correlation of advantages, with standard errors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.designs import Trial
from benchmarks.simulator.judge import Quality

Floats = NDArray[np.float64]

_RESAMPLES = 400


class Estimate(NamedTuple):
    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"
