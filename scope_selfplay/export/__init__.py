"""The accepted tasks of a run in the shapes that other trainers and evaluators read.

`formats` (pure: a task becomes a row of each format) - `writing` (files, split by split; the command `scope export`).
"""

from scope_selfplay.export.formats import FORMATS
from scope_selfplay.export.writing import export_tasks

__all__ = ["FORMATS", "export_tasks"]
