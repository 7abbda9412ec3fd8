import pytest

pytest.importorskip("trl", reason="needs the train extra")
