import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.ranking.matches import LiveRoute, is_flat, route

FLAT, DIVERSE = [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]
GROUPS = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=4), max_size=12)


@pytest.mark.parametrize(
    ("rewards", "flat"),
    [
        ([1.0, 1.0], True),
        ([0.1 + 0.2, 0.3], True),
        ([0.3, 0.30001], False),
        ([None, 0.5, 0.5], True),
        ([None, 0.5], False),
        ([None, None], False),
        ([], False),
    ],
)
def test_a_group_is_flat_when_two_known_rewards_or_more_are_equal(
    rewards: list[float | None], flat: bool
) -> None:
    assert is_flat(rewards) is flat


@settings(max_examples=50)
@given(GROUPS, st.integers(0, 40), st.integers(0, 100))
def test_a_budget_is_kept_and_used(groups: list[list[float | None]], budget: int, seed: int) -> None:
    prices = [3 * len(group) for group in groups]
    routed = route(groups, prices, random.Random(seed), budget=budget)
    calls = sum(price for price, goes in zip(prices, routed, strict=True) if goes)
    assert calls <= budget
    flat = [is_flat(rewards) for rewards in groups]
    assert all(is_level or not goes for is_level, goes in zip(flat, routed, strict=True))
    left_behind = [
        price for price, is_level, goes in zip(prices, flat, routed, strict=True) if is_level and not goes
    ]
    assert all(price > budget - calls for price in left_behind)


def test_a_short_budget_does_not_always_serve_the_same_groups_and_none_is_negative() -> None:
    served = {route([FLAT] * 4, [3] * 4, random.Random(seed), budget=3).index(True) for seed in range(40)}
    assert served == {0, 1, 2, 3}

    with pytest.raises(ValueError, match="-1"):
        route([FLAT], [3], random.Random(0), budget=-1)


def test_a_live_group_that_differs_at_once_never_starts() -> None:
    gate = LiveRoute()
    assert [gate.arrive(0, 0.0), gate.arrive(1, 1.0), gate.arrive(2, 1.0)] == [[], [], []]
    assert not gate.is_flat


@settings(max_examples=50)
@given(st.lists(st.sampled_from([0.0, 1.0, None]), max_size=8))
def test_the_live_decision_agrees_with_the_final_one(rewards: list[float | None]) -> None:
    gate = LiveRoute()
    joined = [other for entrant, reward in enumerate(rewards) for other in gate.arrive(entrant, reward)]
    assert gate.is_flat == is_flat(rewards)
    if gate.is_flat:
        assert joined == [entrant for entrant, reward in enumerate(rewards) if reward is not None]
