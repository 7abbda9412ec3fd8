from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.ranking.matches import min_max, rank_rewards

STRENGTHS = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=12)


@settings(max_examples=50)
@given(STRENGTHS)
def test_rewards_lie_in_the_unit_interval_and_missing_stays_missing(strengths: list[float | None]) -> None:
    for rewards in (min_max(strengths), rank_rewards(strengths)):
        assert [reward is None for reward in rewards] == [strength is None for strength in strengths]
        assert all(0.0 <= reward <= 1.0 for reward in rewards if reward is not None)


@settings(max_examples=50)
@given(STRENGTHS)
def test_rewards_keep_the_order(strengths: list[float | None]) -> None:
    for rewards in (min_max(strengths), rank_rewards(strengths)):
        known = [(s, r) for s, r in zip(strengths, rewards, strict=True) if s is not None and r is not None]
        for (strength, reward), (other, other_reward) in pairwise(known):
            assert (strength <= other) or (reward >= other_reward)
            assert strength != other or reward == other_reward


def test_ties_share_their_mean_rank() -> None:
    assert rank_rewards([3.0, 1.0, 3.0, None, 0.0]) == pytest.approx([5 / 6, 1 / 3, 5 / 6, None, 0.0])


def test_one_judged_entrant_gets_what_equals_get() -> None:
    assert rank_rewards([None, 4.0]) == [None, 0.5]
    assert rank_rewards([2.0, 2.0]) == [0.5, 0.5]
    assert min_max([None, 4.0]) == [None, 0.0]


def test_nobody_judged_gives_nobody_a_reward() -> None:
    assert min_max([None, None]) == rank_rewards([None, None]) == [None, None]
    assert min_max([]) == rank_rewards([]) == []
