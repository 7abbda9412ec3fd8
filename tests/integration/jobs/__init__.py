import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")
pytest.importorskip("math_verify", reason="needs the math extra")
