"""The page about rewards names everything that a user can choose, and everything that is logged."""

from pathlib import Path

import pytest

from scope_selfplay.config.rewards import DESIGNS, PRESETS
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
METRICS = reward({"reward": "rubric"}, ScriptedJudge(), rollouts("1 1 1", "9 9 9")).metrics


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_its_row(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE


@pytest.mark.parametrize("name", METRICS)
def test_every_number_of_a_step_is_explained(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE


@pytest.mark.parametrize("design", DESIGNS)
def test_every_setting_of_a_design_says_what_it_means(design: str) -> None:
    for name, field in DESIGNS[design].model_fields.items():
        assert (field.description or "").endswith("."), f"{design}.{name} has no docstring that is a sentence"
