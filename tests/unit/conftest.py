"""Judges over the shipped fake; how hard property tests try, with `HYPOTHESIS_PROFILE=thorough` before a release."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.judges import ask, judge_over, pack
from tests.models import write_model

__all__ = ["ask", "judge_over", "pack"]

# No deadline, and the same examples every time: neither load nor chance must fail a test that is right.
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model; opening a run loads no weights."""
    return write_model(tmp_path / "model")
