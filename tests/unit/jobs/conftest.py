"""What the retriever's tests make, too."""

from tests.unit.retrieval.conftest import model

__all__ = ["model"]
