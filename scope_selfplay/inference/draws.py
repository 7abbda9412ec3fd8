"""From logits to tokens: every sequence samples with noise of its own, so that what shares its batch does not matter.

What shares a batch changes the last bits of logits. A draw that such bits could decide is `close`, and whoever wants
the same tokens in every batch decides it again from a pass of the sequence alone. How a token is drawn sets how often
that happens:

- A small vocabulary: invert the distribution at one uniform number. Close is a number near a border between tokens.
  Each token adds a border, so in a large vocabulary nearly every number is near one.
- A large one: every token draws an exponential time, divided by its probability, and the first wins (the Gumbel-max
  trick). Close are two winners within a margin: at most that share of all draws, whatever the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGE_VOCABULARY = 16_384
"""The tiny policies have some thousand words; the families of the papers 100,000 to 152,000."""

# Batches change a float32 probability by some 1e-6 and a logit by some 1e-4.
_CLOSE_DRAW = 3e-4
_CLOSE_LOGITS = 3e-3

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Draw:
    """What decides one token of a sequence besides its logits; `uniform` is the noise of (`seed`, `position`).

    `top_p`: only the likeliest tokens are drawn that together have this share. Log-probabilities are those of the whole
    distribution, as the trainer computes them.
    """

    uniform: float
    seed: int
    position: int
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False


@dataclass(frozen=True)
class Drawn:
    """`tokens` of all rows, `close`: which another rounding could decide otherwise; logits less their row's greatest
    (`scaled`) and the logarithms of their sums (`totals`)."""

    tokens: np.ndarray[Any, np.dtype[np.int64]]
    close: np.ndarray[Any, np.dtype[np.bool_]]
    scaled: np.ndarray[Any, Any]
    totals: _Floats

    def logprob(self, row: int, token: int) -> float:
        return float(self.scaled[row, token] - self.totals[row])


def draw_tokens(logits: _Logits, draws: Sequence[Draw]) -> Drawn:
    """One token for each row of `logits` (rows, vocabulary)."""
    if logits.shape[1] > LARGE_VOCABULARY:
        return _first_of_race(logits, draws)
    return _at_uniform(logits, draws)


def _at_uniform(logits: _Logits, draws: Sequence[Draw]) -> Drawn:
    uniform = np.array([draw.uniform for draw in draws])
    greedy = np.array([draw.greedy for draw in draws])
    scaled = logits.astype(np.float64) / np.array([[draw.temperature] for draw in draws])
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    cumulative = weights.cumsum(axis=1)
    totals = cumulative[:, -1].copy()
    top_p = np.array([draw.top_p for draw in draws])
    if (top_p < 1).any():
        kept = _nucleus(weights / totals[:, None], top_p)
        cumulative = np.where(kept, weights, 0.0).cumsum(axis=1)
    cumulative /= cumulative[:, -1:].copy()
    sampled = np.minimum((cumulative <= uniform[:, None]).sum(axis=1), logits.shape[1] - 1)
    rows = np.arange(len(logits))
    above = cumulative[rows, sampled] - uniform
    below = uniform - np.where(sampled > 0, cumulative[rows, sampled - 1], -1.0)
    second, first = np.partition(scaled, -2, axis=1)[:, -2:].T
    return Drawn(
        tokens=np.where(greedy, scaled.argmax(axis=1), sampled),
        close=np.where(greedy, first - second < _CLOSE_LOGITS, np.minimum(above, below) < _CLOSE_DRAW),
        scaled=scaled,
        totals=np.log(totals),
    )


def _first_of_race(logits: _Logits, draws: Sequence[Draw]) -> Drawn:
    scaled = np.empty(logits.shape, np.float32)
    tokens, close = np.empty(len(draws), np.int64), np.empty(len(draws), np.bool_)
    totals = np.empty(len(draws))
    # Row by row: what one row needs stays in the processor's cache.
    for row, draw in enumerate(draws):
        np.divide(logits[row], np.float32(draw.temperature), out=scaled[row])
        scaled[row] -= scaled[row].max()
        speeds = np.exp(scaled[row])
        totals[row] = np.log(speeds.sum(dtype=np.float64))
        if not draw.greedy:
            if draw.top_p < 1:
                shares = speeds[None].astype(np.float64) / np.exp(totals[row])
                speeds[~_nucleus(shares, np.array([draw.top_p]))[0]] = 0.0
            noise = np.random.Generator(np.random.SFC64((draw.seed, draw.position)))
            times = noise.standard_exponential(len(speeds), dtype=np.float32)
            # The generator's smallest step is 2**-24: a time of 0 would let a token win that hardly has a probability.
            speeds /= np.maximum(times, np.float32(2**-25), out=times)
        tokens[row] = winner = speeds.argmax()
        won, speeds[winner] = speeds[winner], 0.0
        close[row] = speeds.max() > won * np.exp(-_CLOSE_LOGITS)
    return Drawn(tokens, close, scaled, totals)


def _nucleus(shares: _Floats, top_p: _Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of each row the likeliest tokens whose shares add up to `top_p`, the one that reaches it included."""
    order = np.argsort(-shares, axis=1, kind="stable")
    ranked = np.take_along_axis(shares, order, axis=1)
    before = ranked.cumsum(axis=1) - ranked
    kept = np.zeros(shares.shape, dtype=np.bool_)
    np.put_along_axis(kept, order, (before < top_p[:, None]) | (top_p[:, None] >= 1), axis=1)
    return kept
