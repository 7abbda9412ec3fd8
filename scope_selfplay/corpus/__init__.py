"""Source documents: read them, cut them to size, deal them to stages, and say what to write from each.

Reading order: `reading` (a path to documents, by one of its readers), `markdown` (documentation pages to
sections), `chunking`, `deck`. Reading is the only contact with the disk; `cli` is `scope documents`.
"""

from scope_selfplay.corpus.reading import READERS, read_documents, read_sample
from scope_selfplay.corpus.run_corpus import chunk
from scope_selfplay.corpus.sampling import (
    TURN_RATIO,
    TaskSource,
    apportion,
    assign_sources,
    assign_task_types,
    search_turn_counts,
    shuffled,
    take_unused,
)

__all__ = [
    "READERS",
    "TURN_RATIO",
    "TaskSource",
    "apportion",
    "assign_sources",
    "assign_task_types",
    "chunk",
    "read_documents",
    "read_sample",
    "search_turn_counts",
    "shuffled",
    "take_unused",
]
