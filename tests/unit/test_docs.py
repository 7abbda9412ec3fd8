"""The pages of docs/ name what exists: every option, setting, metric, path and name that a user can choose or meet."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from retrieval.commands import build, serve_retriever
from retrieval.profiles import PROFILES
from retrieval.service import RetrieverMetrics
from scope_selfplay.config.judge import CallConfig, CanariesConfig, EndpointConfig, JudgeConfig, NoiseConfig
from scope_selfplay.config.rewards import DESIGNS, PRESETS
from scope_selfplay.config.run import ModelConfig, PartnersConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.designs.answers import behaviour_metrics
from scope_selfplay.inference import server
from scope_selfplay.inference.commands import serve_model
from scope_selfplay.judge.commands import judge, serve_judge
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.rewards.measures import RolloutClock, joined_values
from scope_selfplay.training.loss import PassTotals
from scope_selfplay.training.metrics import group_metrics, row_metrics, update_metrics
from scope_selfplay.training.passes import RolloutShare, RowSize
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts

DOCS = Path(__file__).parents[2] / "docs"


def options_of(*commands: click.Command) -> list[str]:
    opts = [option for command in commands for parameter in command.params for option in parameter.opts]
    return [option for option in opts if option.startswith("--")]


def metrics_of(exposed: bytes) -> list[str]:
    types = (line.split()[2] for line in exposed.decode().splitlines() if line.startswith("# TYPE"))
    return [name.removesuffix("_created") for name in types]


def choices(model: Any, name: str) -> Iterable[str]:
    return get_args(model.model_fields[name].annotation)


def of_training() -> list[str]:
    """Losses, and the numbers that a training writes."""
    rows = row_metrics([RewardedRollout([TrainingRow([1], [2], [1], [0.0])], 1.0, truncated=True)])
    assert joined_values([rows]) == {"rows": 1.0, "split": 0.0, "truncated": 1.0}
    groups = group_metrics([[RolloutShare(1.0, True, (RowSize(2, 1),))]], [[0.0]])
    written = (
        rows,
        groups,
        update_metrics(PassTotals(), 0.0),
        RolloutClock().seconds(),
        behaviour_metrics([]),
    )
    return [*choices(TrainConfig, "loss"), *(name for numbers in written for name in numbers)]


JUDGE_PARTS = (EndpointConfig, CallConfig, NoiseConfig, CanariesConfig)
OF_A_STEP = reward({"reward": "rubric"}, ScriptedJudge(), rollouts("1 1 1", "9 9 9")).metrics
NAMED: dict[tuple[str, str], Iterable[str]] = {
    ("judge.md", "`{}"): [
        *(f"judge.{name}" for name in JudgeConfig.model_fields),
        *(name for part in JUDGE_PARTS for name in part.model_fields),
        *ROLE_OF_PROMPT,
    ],
    ("judge.md", "{}"): options_of(serve_judge, *judge.commands.values()),
    ("serving.md", "`{}`"): [*options_of(serve_model), *choices(ModelConfig, "engine")],
    ("serving.md", "partners.{}"): PartnersConfig.model_fields,
    ("retrieval.md", "`{}"): [*options_of(build, serve_retriever), *(f"{name}`" for name in PROFILES)],
    ("retrieval.md", "{}"): metrics_of(RetrieverMetrics().render()),
    ("retrieval.md", "{}`"): ("/retrieve", "/info", "/healthz", "/health", "/readyz", "/metrics"),
    ("rewards.md", "\n| `{}` |"): [*PRESETS, *OF_A_STEP],
    ("training.md", "`{}`"): of_training(),
}
"""By page and form."""


@pytest.mark.parametrize(("page", "form"), NAMED)
def test_a_page_names_everything(page: str, form: str) -> None:
    text, names = (DOCS / page).read_text(encoding="utf-8"), list(NAMED[page, form])
    assert names and [name for name in names if form.format(name) not in text] == []


def test_every_path_and_metric_of_a_policys_server_is_in_the_docs() -> None:
    page, source = (DOCS / "serving.md").read_text(encoding="utf-8"), Path(server.__file__).read_text()
    paths = [line.split('"')[1] for line in source.splitlines() if "Route(" in line]
    assert len(paths) == 5 and [path for path in paths if f"{path}`" not in page] == []
    names = ("requests", "request_seconds", "tokens", "running", "waiting")
    assert [name for name in names if f'("{name}", ' not in source or f"scope_model_{name}" not in page] == []


@pytest.mark.parametrize("design", DESIGNS)
def test_every_setting_of_a_design_says_what_it_means(design: str) -> None:
    for name, field in DESIGNS[design].model_fields.items():
        assert (field.description or "").endswith("."), f"{design}.{name} has no docstring that is a sentence"
