"""docs/retrieval.md names what exists: every option, path, metric and profile."""

from pathlib import Path

import pytest

from retrieval.commands import build, serve_retriever
from retrieval.profiles import PROFILES
from retrieval.service import RetrieverMetrics

PAGE = (Path(__file__).parents[3] / "docs" / "retrieval.md").read_text()


@pytest.mark.parametrize("command", [build, serve_retriever])
def test_every_option_is_in_the_docs(command: object) -> None:
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]  # type: ignore[attr-defined]
    assert options
    assert [option for option in options if f"`{option}" not in PAGE] == []


def test_every_metric_is_in_the_docs() -> None:
    exposed = RetrieverMetrics().render().decode()
    names = {line.split()[2] for line in exposed.splitlines() if line.startswith("# TYPE")}
    assert names
    assert [name for name in names if name.removesuffix("_created") not in PAGE] == []


def test_every_profile_is_in_the_docs() -> None:
    assert [name for name in PROFILES if f"`{name}`" not in PAGE] == []


def test_every_path_is_in_the_docs() -> None:
    for path in ("/retrieve", "/info", "/healthz", "/health", "/readyz", "/metrics"):
        assert f"{path}`" in PAGE
