"""What a run leaves on disk, written so that a kill at any moment loses nothing that was finished.

`jsonl` (append-only records) - `atomic` (whole files) - `manifest` (a stage is done when its manifest stands)
- `folders` (where everything lies).
"""

from scope_selfplay.store.atomic import write_atomic
from scope_selfplay.store.folders import (
    RunFolder,
    Stage,
    StageFolder,
    StageManifest,
    publish_manifest,
    read_manifest,
)
from scope_selfplay.store.jsonl import Appender, read_records, write_records

__all__ = [
    "Appender",
    "RunFolder",
    "Stage",
    "StageFolder",
    "StageManifest",
    "publish_manifest",
    "read_manifest",
    "read_records",
    "write_atomic",
    "write_records",
]
