"""A process that ranks are forks of, for all tests here."""

from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason="needs the train extra")

from benchmarks.forked import fork_server


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The beginning of a rank's command line."""
    with fork_server("tests.fsdp.rank", tmp_path_factory.mktemp("forks")) as command:
        yield command
