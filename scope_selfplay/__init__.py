"""SCOPE self-play: a Challenger, a Solver and a frozen Judge, from a raw corpus to trained policies.

`docs/how/architecture.md` is the map: the rooms in the order of imports, the main path, where to go for what; `Run` is
what a notebook needs.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scope_selfplay.play.notebook import NotebookRun as Run

__all__ = ["DEFAULT_CONFIG", "Run", "__version__"]
__version__ = "0.2.0"
DEFAULT_CONFIG = Path(__file__).parent / "embedded" / "run.yaml"
"""The settings of `scope run` without a config: the embedded world on a laptop."""


def __getattr__(name: str) -> Any:
    # Every command imports this package, and few need a run's readers.
    if name == "Run":
        return import_module("scope_selfplay.play.notebook").NotebookRun
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
