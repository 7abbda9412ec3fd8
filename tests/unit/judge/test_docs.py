"""docs/judge.md names every setting, command, role, fault and metric of the judge."""

import pytest

from scope_selfplay.config import (
    CallConfig,
    CanariesConfig,
    EndpointConfig,
    JudgeConfig,
    JudgeRetryConfig,
    NoiseConfig,
)
from scope_selfplay.config.judge import RoleEndpointsConfig
from scope_selfplay.judge.cli import ROLES, serve_judge
from scope_selfplay.judge.metrics import JudgeMetrics
from scope_selfplay.judge_audit.cli import judge
from tests.judges import REPOSITORY

DOCS = (REPOSITORY / "docs" / "judge.md").read_text(encoding="utf-8")
FIELDS = [f"judge.{name}" for name in JudgeConfig.model_fields]
PARTS = [
    name
    for model in (
        EndpointConfig,
        RoleEndpointsConfig,
        CallConfig,
        JudgeRetryConfig,
        NoiseConfig,
        CanariesConfig,
    )
    for name in model.model_fields
]
METRICS = [
    line.split()[2].removesuffix("_created")
    for line in JudgeMetrics().render().decode().splitlines()
    if line.startswith("# TYPE")
]
OPTIONS = [
    option
    for command in (serve_judge, *judge.commands.values())
    for parameter in command.params
    for option in parameter.opts
    if option.startswith("--")
]


@pytest.mark.parametrize("name", [*FIELDS, *PARTS, *METRICS, *ROLES])
def test_the_docs_name_every_setting_metric_and_role(name: str) -> None:
    assert f"`{name}" in DOCS


@pytest.mark.parametrize("option", sorted(set(OPTIONS)))
def test_the_docs_show_every_option(option: str) -> None:
    assert option in DOCS


def test_every_metric_begins_with_scope_judge() -> None:
    assert METRICS and all(name.startswith("scope_judge_") for name in METRICS)
