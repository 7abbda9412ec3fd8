"""Exact cases and hostile inputs of `tests/reference`, as pytest parameters."""

import json
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parent / "reference"


def read_reference(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((REFERENCE / file).read_text("utf-8"))
    return content


def reference_cases(file: str, key: str) -> list[Any]:
    """One parameter per case of `tests/reference/<file>`, named by its `key`."""
    return [pytest.param(case, id=case[key]) for case in read_reference(file)["cases"]]
