"""Starts two ranks once for the cases of all selected tests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the train extra")

from benchmarks.forked import fork_server
from tests.fsdp.place import RANKS, name_of, start_ranks


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The beginning of a rank's command line."""
    with fork_server("tests.fsdp.rank", tmp_path_factory.mktemp("forks")) as command:
        yield command


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: list[str]) -> Any:
    """Where all cases ran, how their ranks ended, and what they said."""
    markers = [item.get_closest_marker("on_ranks") for item in request.session.items]
    cases = dict.fromkeys(name_of(marker.args[0]) for marker in markers if marker)
    folder, said = tmp_path_factory.mktemp("ranks"), list[str]()
    return folder, start_ranks(forks, list(cases), folder, said.append), said


@pytest.fixture
def found(request: pytest.FixtureRequest, shared: Any) -> list[dict[str, Any]]:
    """What each rank returned from the case of this test."""
    folder, ending, said = shared
    case = request.node.get_closest_marker("on_ranks").args[0]
    files = [folder / case.__name__ / f"rank-{rank}.json" for rank in range(RANKS)]
    if not all(file.is_file() for file in files):
        lines = "\n".join(said[-20:])
        pytest.fail(f"no result of {case.__name__}; the ranks ended with {ending}:\n{lines}", pytrace=False)
    return [json.loads(file.read_text()) for file in files]
