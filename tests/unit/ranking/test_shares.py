import random
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import (
    LiveRoute,
    bradley_terry,
    bradley_terry_batch,
    is_flat,
    min_max,
    rank_rewards,
    route,
    soft_share,
)

Shares = list[tuple[int, int, float]]


def random_shares(n: int, matches: int, seed: int) -> Shares:
    rng = random.Random(seed)
    return [(*rng.sample(range(n), 2), rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])) for _ in range(matches)]


def loss_and_slope(beta: np.ndarray, shares: Shares, ridge: float) -> tuple[float, np.ndarray]:
    """Equation 10 as it is written: every match and its mirror, one term each."""
    mirrored = shares + [(second, first, 1 - share) for first, second, share in shares]
    first, second, share = (np.array(column) for column in zip(*mirrored, strict=True))
    gap = beta[first] - beta[second]
    loss = (
        share * np.logaddexp(0, -gap) + (1 - share) * np.logaddexp(0, gap)
    ).sum() + ridge / 2 * beta @ beta
    pull = 1 / (1 + np.exp(-gap)) - share
    slope = np.bincount(first, pull, len(beta)) - np.bincount(second, pull, len(beta)) + ridge * beta
    return float(loss), slope


def test_bradley_terry_agrees_with_l_bfgs_b() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="the oracle needs scipy (extra dev)")
    for n, ridge in product([2, 3, 8, 16], [0.1, 1.0, 10.0]):
        shares = random_shares(n, 3 * n, seed=n)
        found = optimize.minimize(
            loss_and_slope,
            np.zeros(n),
            args=(shares, ridge),
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        beta = bradley_terry(n, shares, ridge=ridge)
        assert [0.0 if b is None else b for b in beta] == pytest.approx(found.x, abs=1e-6)


def test_a_batch_gives_what_single_groups_give() -> None:
    sizes = [2, 8, 5, 8, 3]
    won = np.zeros((len(sizes), 8, 8))
    for group, n in enumerate(sizes):
        for first, second, share in random_shares(n, 4 * n, group):
            won[group, first, second] += share
            won[group, second, first] += 1 - share
    together = bradley_terry_batch(won)
    assert together.shape == (len(sizes), 8)
    for group, n in enumerate(sizes):
        alone = bradley_terry(n, random_shares(n, 4 * n, group))
        assert together[group, :n] == pytest.approx([0.0 if b is None else b for b in alone], abs=1e-9)
        assert (together[group, n:] == 0.0).all()
    assert bradley_terry_batch(won[:, :0, :0]).shape == (len(sizes), 0)


def test_bradley_terry_refuses_what_is_no_share_and_a_ridge_that_does_not_hold() -> None:
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="a share is between 0 and 1"):
            bradley_terry(2, [(0, 1, share)])
    for entry in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="an entry of `won` is negative or not a number"):
            bradley_terry_batch(np.full((1, 2, 2), entry))
    with pytest.raises(ValueError, match="ridge is 0"):
        bradley_terry(2, [(0, 1, 1.0)], ridge=0.0)


@settings(max_examples=40)
@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(0.501, 1.0))
def test_the_two_shares_of_a_match_add_up_to_one(first: float, second: float, gamma: float) -> None:
    shares = [soft_share(outcome, gamma) for outcome in (Outcome(first, second), Outcome(second, first))]
    assert sum(shares) == pytest.approx(1.0) and (shares[0] > 0.5) == (first > second)
    for outside in (0.5, 1.01, float("nan")):
        with pytest.raises(ValueError, match="gamma"):
            soft_share(Outcome(first, second), outside)


@settings(max_examples=50)
@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=12))
def test_rewards_lie_in_the_unit_interval_and_missing_stays_missing(strengths: list[float | None]) -> None:
    """They keep the order, and equals are equal."""
    for rewards in (min_max(strengths), rank_rewards(strengths)):
        assert [reward is None for reward in rewards] == [strength is None for strength in strengths]
        known = [(s, r) for s, r in zip(strengths, rewards, strict=True) if s is not None and r is not None]
        assert all(0.0 <= reward <= 1.0 for _, reward in known)
        for (strength, reward), (other, other_reward) in pairwise(known):
            assert (strength <= other) or (reward >= other_reward)
            assert strength != other or reward == other_reward


def test_ties_share_their_mean_rank_and_who_is_judged_alone_gets_what_equals_get() -> None:
    assert rank_rewards([3.0, 1.0, 3.0, None, 0.0]) == pytest.approx([5 / 6, 1 / 3, 5 / 6, None, 0.0])
    assert rank_rewards([2.0, 2.0]) == [0.5, 0.5] and rank_rewards([None, 4.0]) == [None, 0.5]
    assert min_max([None, 4.0]) == [None, 0.0]
    # Those below stand at 0, a step under the weakest.
    assert min_max([3.0, 0.0, None, 1.0], 0.5, below=2) == [0.9, 0.3, None, 0.5]
    assert min_max([3.0, 3.0], 1.0, below=1) == [0.5, 0.5]
    assert min_max([]) == rank_rewards([]) == []


FLAT = [0.0, 0.0, 0.0]
GROUPS = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=4), max_size=12)


def test_a_group_is_flat_when_two_known_rewards_or_more_are_equal() -> None:
    flat, others = ([0.1 + 0.2, 0.3], [None, 0.5, 0.5], [1e-9, 0.0]), ([0.3, 0.30001], [None, 0.5], [])
    assert all(map(is_flat, flat)) and not any(map(is_flat, others))


@settings(max_examples=50)
@given(GROUPS, st.integers(0, 40), st.integers(0, 100))
def test_a_budget_is_kept_and_used(groups: list[list[float | None]], budget: int, seed: int) -> None:
    prices = [3 * len(group) for group in groups]
    routed = route(groups, prices, random.Random(seed), budget=budget)
    left = budget - sum(price for price, goes in zip(prices, routed, strict=True) if goes)
    assert left >= 0
    for rewards, price, goes in zip(groups, prices, routed, strict=True):
        assert not goes if not is_flat(rewards) else goes or price > left


def test_a_short_budget_does_not_always_serve_the_same_groups_and_none_is_negative() -> None:
    served = {route([FLAT] * 4, [3] * 4, random.Random(seed), budget=3).index(True) for seed in range(40)}
    assert served == {0, 1, 2, 3}

    with pytest.raises(ValueError, match="-1"):
        route([FLAT], [3], random.Random(0), budget=-1)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([0.0, 1.0, None]), max_size=8))
def test_the_live_decision_agrees_with_the_final_one(rewards: list[float | None]) -> None:
    """All that are known join, from the second equal reward on and until one differs."""
    gate = LiveRoute()
    joined = [other for entrant, reward in enumerate(rewards) for other in gate.arrive(entrant, reward)]
    assert gate.is_flat == is_flat(rewards)
    known = [entrant for entrant, reward in enumerate(rewards) if reward is not None]
    alike = [entrant for entrant in known if len({*rewards[: entrant + 1]} - {None}) == 1]
    assert joined == (alike if len(alike) > 1 else [])
