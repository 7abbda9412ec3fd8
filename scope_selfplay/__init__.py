"""SCOPE self-play: a Challenger, a Solver and a frozen Judge, from a raw corpus to trained policies.

`docs/architecture.md` is the map: packages in reading order, the journey of a document to a gradient, recipes. The
main path: `local.run_all` -> `stages` -> `pipeline.make_candidate` -> `episodes` and `judge`; `training.loop`.
"""

from pathlib import Path

__version__ = "0.1.0"
DEFAULT_CONFIG = Path(__file__).parent / "embedded" / "run.yaml"
"""The settings of `scope run` without a config: the embedded world on a laptop."""
