import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def reference() -> Callable[[str], dict[str, Any]]:
    """Reads one file of the shared reference folder, or skips."""

    def read(name: str) -> dict[str, Any]:
        shared = Path(os.environ.get("SCOPE_SHARED", REPOSITORY.parent / "shared"))
        path = shared / "reference" / name
        if not path.exists():
            pytest.skip(f"{path} is absent; set SCOPE_SHARED to the folder that holds reference/")
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    return read
