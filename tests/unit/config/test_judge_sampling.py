"""The judge of Tournament-GRPO samples as its table 4 says, unless the config says otherwise."""

import pytest

from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.config.rewards import GREEDILY_JUDGED, PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_of_tournament_grpo_judge_greedily(preset: str) -> None:
    call = load_config(None, [f"solver.reward={preset}"]).judge.calls[JudgeRole.COMPARE]
    expected = (0.0, 0.95) if preset in GREEDILY_JUDGED else (0.6, 1.0)
    assert (call.temperature, call.top_p) == expected


def test_what_the_config_says_of_the_judge_stays() -> None:
    changes = ["solver.reward=tournament_grpo_2_1_1", "judge.calls.compare.temperature=0.3"]
    call = load_config(None, changes).judge.calls[JudgeRole.COMPARE]
    assert (call.temperature, call.top_p) == (0.3, 0.95)
