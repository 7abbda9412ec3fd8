import pytest

pytest.importorskip("trl", reason="needs the local extra")
pytest.importorskip("bm25s", reason="needs the local extra")
