"""docs/serving.md names what exists: every option, path, metric and setting of a run among servers."""

from pathlib import Path
from typing import get_args

import pytest

from scope_selfplay.config.run import ModelConfig, PartnersConfig
from scope_selfplay.inference.commands import serve_model

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
OPTIONS = [each for option in serve_model.params for each in option.opts if each.startswith("--")]
ENGINES = get_args(ModelConfig.model_fields["engine"].annotation)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_in_the_docs(option: str) -> None:
    assert f"`{option}`" in PAGE


@pytest.mark.parametrize("name", [*PartnersConfig.model_fields])
def test_every_setting_of_partners_is_in_the_docs(name: str) -> None:
    assert f"partners.{name}" in PAGE


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_in_the_docs(engine: str) -> None:
    assert f"`{engine}`" in PAGE


def test_every_path_and_metric_is_in_the_docs() -> None:
    source = (Path(__file__).parents[3] / "scope_selfplay" / "inference" / "server.py").read_text()
    paths = [line.split('"')[1] for line in source.splitlines() if "Route(" in line]
    assert len(paths) == 5 and [path for path in paths if f"{path}`" not in PAGE] == []
    names = ("requests", "request_seconds", "tokens", "running", "waiting")
    assert [name for name in names if f'("{name}", ' not in source] == []
    assert [name for name in names if f"scope_model_{name}" not in PAGE] == []
