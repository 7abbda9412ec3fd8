"""SCOPE self-play: a Challenger, a Solver and a frozen Judge, from a raw corpus to trained policies.

`docs/how/architecture.md` is the map: the rooms in the order of imports, the main path, where to go for what.
"""

from pathlib import Path

__version__ = "0.2.0"
DEFAULT_CONFIG = Path(__file__).parent / "embedded" / "run.yaml"
"""The settings of `scope run` without a config: the embedded world on a laptop."""
