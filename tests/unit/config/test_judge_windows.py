"""The judges that the run folders serve: their windows lie within their models' positions and hold what is shown."""

from pathlib import Path

import pytest

from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import load_config

RUNS = Path(__file__).parents[3] / "k8s" / "runs"
POSITIONS = {
    "Qwen2.5-72B-Instruct": 32_768,
    "Qwen3-235B-A22B": 40_960,
    "Qwen3-30B-A3B-Instruct-2507": 262_144,
    "Qwen3-32B": 40_960,
}
"""Tokens, of each model's own config.json (`max_position_embeddings`); beyond them it is out of its depth."""
CHARACTERS_PER_TOKEN = {"arenarl": 1.5, "tournament-grpo": 4.0}
"""Of Chinese and of English."""
PROMPT = 1_500


@pytest.mark.parametrize("name", ["arenarl", "tournament-grpo", "reasoning-arena"])
def test_a_window_lies_within_the_positions_of_the_model(name: str) -> None:
    config = load_config(RUNS / name / "run.yaml")
    window = config.judge.endpoint.context
    assert window is not None and config.cluster.judge.model is not None
    assert window <= POSITIONS[Path(config.cluster.judge.model).name]
    assert str(window) in " ".join(config.cluster.judge.args)


@pytest.mark.parametrize("name", CHARACTERS_PER_TOKEN)
def test_a_window_holds_all_that_may_be_shown_and_the_verdict(name: str) -> None:
    judge = load_config(RUNS / name / "run.yaml").judge
    assert judge.endpoint.context is not None
    shown = judge.max_chars / CHARACTERS_PER_TOKEN[name]
    assert shown + PROMPT + judge.calls[JudgeRole.COMPARE].max_tokens <= judge.endpoint.context
