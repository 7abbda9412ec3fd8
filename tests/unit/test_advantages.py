"""What must hold for the advantages of any group (SCOPE equation 2 and appendix D)."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scope_selfplay.rewards.equations import group_advantages

rewards = st.floats(-1e6, 1e6)


@given(st.lists(rewards, min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_their_squares_to_the_group_size(group: list[float]) -> None:
    assume(max(group) - min(group) > 1e-3)
    advantages = group_advantages(group, epsilon=0.0)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)
    assert math.fsum(advantage**2 for advantage in advantages) == pytest.approx(len(group))


@given(rewards, st.integers(1, 16))
def test_a_flat_group_has_exactly_no_advantages(reward: float, size: int) -> None:
    assert group_advantages([reward] * size) == [0.0] * size
    assert group_advantages([reward] * size, epsilon=0.0) == [0.0] * size


@given(st.lists(rewards, min_size=2, max_size=8), st.integers(0, 8))
def test_a_missing_reward_gets_0_and_moves_no_other(group: list[float], position: int) -> None:
    position = min(position, len(group))
    with_gap = group_advantages([*group[:position], None, *group[position:]])
    assert with_gap.pop(position) == 0.0
    assert with_gap == group_advantages(group)


def test_a_group_without_any_reward_has_no_advantages() -> None:
    assert group_advantages([]) == []
    assert group_advantages([None, None]) == [0.0, 0.0]


def test_rewards_too_close_to_square_are_flat() -> None:
    assert group_advantages([0.0, 5e-324], epsilon=0.0) == [0.0, 0.0]


@pytest.mark.parametrize(("group", "epsilon"), [([1.0, math.nan], 1e-6), ([1.0, math.inf], 1e-6)])
def test_advantages_of_impossible_rewards_are_refused(group: list[float], epsilon: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages(group, epsilon)
