"""The mark of every test here, tiny policies for the whole session, and libraries that keep quiet."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scope_selfplay.inference.codec import ChatCodec

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.integration.loop.policies import write_random_policy

    return write_random_policy(tmp_path_factory.mktemp("random-policy"))


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The beginning of `scope ...` or `jobs ...` as a process that has the libraries."""
    from benchmarks.forked import fork_server

    with fork_server("tests.forked_commands", tmp_path_factory.mktemp("forks")) as command:
        yield command


@pytest.fixture(scope="session")
def codec(random_policy: Path) -> "ChatCodec":
    from scope_selfplay.inference.codec import ChatCodec

    return ChatCodec.load(random_policy)


@pytest.fixture(scope="session")
def speaking_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.integration.loop.policies import write_speaking_policy

    return write_speaking_policy(tmp_path_factory.mktemp("speaking-policy"))
