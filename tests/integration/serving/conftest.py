from typing import Any

import pytest


@pytest.fixture(scope="session")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that those among servers must equal."""
    from tests.integration.serving.test_run import run_stages

    return run_stages(tmp_path_factory.mktemp("one"))
