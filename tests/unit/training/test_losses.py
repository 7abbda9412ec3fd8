"""The policy losses by name: their papers' clips, and that a trajectory counts once however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.config import SolverConfig, parse_config
from scope_selfplay.errors import ConfigError
from scope_selfplay.training.losses import Mean, loss_divisor, loss_of, token_weights

lengths = st.lists(st.integers(0, 500), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("name", "low", "high", "in_trl"),
    [
        ("grpo", 0.2, 0.2, 0.2),
        ("dr_grpo", 0.2, 0.2, 0.2),
        ("dapo", 0.2, 0.28, 0.28),
        ("cispo", 1.0, 2.0, 3.0),
        ("gspo", 3e-4, 4e-4, 4e-4),
    ],
)
def test_clips_are_those_of_the_papers(name: str, low: float, high: float, in_trl: float) -> None:
    loss = loss_of(SolverConfig.model_validate({"loss": name}))
    assert (loss.clip_low, loss.clip_high, loss.trl_high) == (low, high, in_trl)


def test_a_clip_of_the_config_goes_before_that_of_the_loss() -> None:
    loss = loss_of(SolverConfig(loss="cispo", clip_high=4.0))
    assert (loss.clip_low, loss.clip_high, loss.trl_high) == (1.0, 4.0, 5.0)


def test_only_dr_grpo_leaves_advantages_unscaled_and_only_gspo_has_one_ratio_a_row() -> None:
    named = {
        name: loss_of(SolverConfig.model_validate({"loss": name})) for name in ("grpo", "dr_grpo", "gspo")
    }
    assert [name for name, loss in named.items() if not loss.scaled] == ["dr_grpo"]
    assert [name for name, loss in named.items() if loss.sequence] == ["gspo"]


def test_cispo_with_a_lower_clip_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"clip_low \(0.5\) must be at least 1 with loss cispo"):
        parse_config({"solver": {"loss": "cispo", "clip_low": 0.5}})


@given(lengths)
def test_under_grpo_every_trajectory_with_tokens_weighs_the_same(tokens: list[int]) -> None:
    longest = max(tokens)
    weights = token_weights(Mean.TRAJECTORIES, tokens, longest)
    share = loss_divisor(Mean.TRAJECTORIES, len(tokens), sum(tokens), longest=longest, budget=1000)
    for length, weight in zip(tokens, weights, strict=True):
        assert not length or weight >= 1
        assert weight * length == pytest.approx(longest if length else 0)
    if longest:
        assert sum(w * n for w, n in zip(weights, tokens, strict=True)) / share <= 1 + 1e-9


def test_token_means_weigh_all_tokens_alike() -> None:
    assert token_weights(Mean.TOKENS, [3, 9], 9) == token_weights(Mean.BUDGET, [3, 9], 9) == [1.0, 1.0]
    assert loss_divisor(Mean.TOKENS, 2, 12, longest=9, budget=100) == 12
    assert loss_divisor(Mean.BUDGET, 2, 12, longest=9, budget=100) == 200
