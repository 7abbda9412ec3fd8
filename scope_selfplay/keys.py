"""Keys name random draws, and contents name records: the same everywhere, on every machine."""

import hashlib
import random

import numpy as np

Key = tuple[str | int, ...]
"""Names one random draw: (run seed, iteration, stage, document or task id, rollout, turn or criterion, attempt)."""


def seed_from(*key: str | int) -> int:
    """A 63-bit seed for one random draw; equal keys give equal seeds on every machine."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def rng_from(*key: str | int) -> random.Random:
    return random.Random(seed_from(*key))


def numpy_rng_from(*key: str | int) -> np.random.Generator:
    return np.random.default_rng(seed_from(*key))


def content_id(prefix: str, *parts: str | int) -> str:
    """An id that follows from the content: `prefix-` and 12 hex digits."""
    return f"{prefix}-{hashlib.blake2b(chr(31).join(map(str, parts)).encode(), digest_size=6).hexdigest()}"
