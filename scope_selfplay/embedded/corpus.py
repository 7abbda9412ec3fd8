"""The embedded corpus of a run: one world to train on and a second one to compare checkpoints on."""

from scope_selfplay.config import CorpusConfig
from scope_selfplay.embedded.world import make_documents
from scope_selfplay.schemas import Document, rng_from

HELD_OUT = "held-out"
"""`Document.source` of what the held-out tasks are made from."""


def embedded_documents(seed: int, settings: CorpusConfig) -> list[Document]:
    """Both worlds' articles; no title stands in both."""
    world = make_documents(rng_from(seed, "world"), settings.embedded_articles, source=f"world-{seed}")
    titles = [document.title for document in world]
    held_out = make_documents(
        rng_from(seed, HELD_OUT), settings.embedded_held_out, source=HELD_OUT, skip=titles
    )
    return world + held_out
