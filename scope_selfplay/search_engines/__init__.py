"""Search engines of somebody else that hold a run's passages, behind the searcher's protocol.

`client` opens one and says what it holds; each other module asks one kind of engine, in its own words. None of them
writes to an engine.
"""

from scope_selfplay.search_engines.client import EngineSearcher

__all__ = ["EngineSearcher"]
