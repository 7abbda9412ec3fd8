"""docs/judge.md names every setting, command and role of the judge."""

import pytest

from scope_selfplay.config.judge import CallConfig, CanariesConfig, EndpointConfig, JudgeConfig, NoiseConfig
from scope_selfplay.judge.commands import judge, serve_judge
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from tests.judges import REPOSITORY

DOCS = (REPOSITORY / "docs" / "judge.md").read_text(encoding="utf-8")
FIELDS = [f"judge.{name}" for name in JudgeConfig.model_fields]
PARTS = [
    name for model in (EndpointConfig, CallConfig, NoiseConfig, CanariesConfig) for name in model.model_fields
]
OPTIONS = [
    option
    for command in (serve_judge, *judge.commands.values())
    for parameter in command.params
    for option in parameter.opts
    if option.startswith("--")
]


@pytest.mark.parametrize("name", [*FIELDS, *PARTS, *ROLE_OF_PROMPT])
def test_the_docs_name_every_setting_and_role(name: str) -> None:
    assert f"`{name}" in DOCS


@pytest.mark.parametrize("option", sorted(set(OPTIONS)))
def test_the_docs_show_every_option(option: str) -> None:
    assert option in DOCS
