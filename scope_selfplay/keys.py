"""Keys name random draws, and contents name records: the same everywhere, on every machine."""

import hashlib
import json
import random

import numpy as np

_SEPARATOR = "\x1f"

Key = tuple[str | int, ...]
"""Names one random draw: (run seed, iteration, stage, document or task id, rollout, turn or criterion, attempt)."""


def seed_from(*key: str | int) -> int:
    """A 63-bit seed for one random draw; equal keys give equal seeds on every machine."""
    return int.from_bytes(_digest([f"{type(part).__name__[0]}{part}" for part in key], 8), "big") >> 1


def rng_from(*key: str | int) -> random.Random:
    return random.Random(seed_from(*key))


def numpy_rng_from(*key: str | int) -> np.random.Generator:
    return np.random.default_rng(seed_from(*key))


def content_id(prefix: str, *parts: str | int) -> str:
    """An id that follows from the content: `prefix-` and 12 hex digits."""
    return f"{prefix}-{_digest(list(map(str, parts)), 6).hex()}"


def _digest(parts: list[str], size: int) -> bytes:
    """Parts that hold the separator, as a document's id could, are told apart by JSON."""
    if any(_SEPARATOR in part for part in parts):
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=size, person=b"json").digest()
    return hashlib.blake2b(_SEPARATOR.join(parts).encode(), digest_size=size).digest()
