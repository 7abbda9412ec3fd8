"""Exact cases and hostile inputs that live beside the repository, as pytest parameters."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("SCOPE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def reference_cases(file: str, key: str) -> list[Any]:
    """One parameter per case of `reference/<file>`, named by its `key`; one that skips where it is absent."""
    path = SHARED / "reference" / file
    if not path.is_file():
        return [
            pytest.param(
                None, marks=pytest.mark.skip(reason=f"{path} is absent; set SCOPE_SHARED"), id="absent"
            )
        ]
    return [pytest.param(case, id=case[key]) for case in json.loads(path.read_text("utf-8"))["cases"]]
