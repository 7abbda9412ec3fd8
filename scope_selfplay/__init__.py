"""SCOPE self-play: a Challenger, a Solver and a frozen Judge, from a raw corpus to trained policies.

`docs/architecture.md` is the map: packages in reading order, the journey of a document to a gradient, recipes. The
main path: `local.run_all` -> `stages` -> `pipeline.make_candidate` -> `episodes` and `judge`; `training.grpo`.
"""

__version__ = "0.1.0"
