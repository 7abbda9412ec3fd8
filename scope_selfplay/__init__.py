"""SCOPE self-play: a Challenger, a Solver and a frozen Judge, from a raw corpus to trained policies.

Read in this order: `schemas` (the values), `rewards` and `dialects` (pure), `episodes` (one rollout as a
generator), `pipeline` (a document becomes a candidate task), `training` (GRPO on both roles), `local`
(`scope run`: the whole loop in one process).
"""

__version__ = "0.1.0"
