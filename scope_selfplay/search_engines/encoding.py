"""Queries as the vectors that an engine's passages were stored as."""

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from retrieval.encoder import (
    FAMILIES,
    Backend,
    Encoder,
    encoder_hash,
    family_of,
    open_encoder,
    prepare_encoder,
)
from retrieval.index_folder import ENCODER_SETTINGS
from scope_selfplay.errors import ConfigError


@dataclass(frozen=True)
class QueryEncoder:
    """One encoder for all event loops; several threads may use it."""

    encoder: Encoder
    hash: str

    def vector(self, query: str) -> list[float]:
        vector: list[float] = self.encoder.queries([query])[0].tolist()
        return vector


# A trainer begins an event loop, and opens its searcher, in every step.
@lru_cache(maxsize=2)
def open_query_encoder(source: str) -> QueryEncoder:
    """Raises ConfigError for a model whose family is unknown, CheckpointError for one that cannot be read."""
    if (Path(source) / ENCODER_SETTINGS).is_file():
        return QueryEncoder(open_encoder(Path(source)), encoder_hash(Path(source)))
    family = family_of(source)
    if family is None:
        raise ConfigError(
            f"search.engine.encoder: the name of {source} holds no family (e5, minilm); give `encoder/` of an index "
            "folder that was built with --family"
        )
    with tempfile.TemporaryDirectory() as folder:
        prepare_encoder(source, FAMILIES[family], Backend.ONNX, Path(folder))
        return QueryEncoder(open_encoder(Path(folder)), encoder_hash(Path(folder)))
