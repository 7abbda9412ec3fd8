import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("math_verify", reason="needs the math extra")
