"""Marks of every test here, tiny policies for the whole session, and libraries that keep quiet."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tests.integration.loop.policies import write_random_policy, write_speaking_policy


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.integration)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_policy(tmp_path_factory.mktemp("random-policy"))


@pytest.fixture(scope="session")
def speaking_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaking_policy(tmp_path_factory.mktemp("speaking-policy"))
