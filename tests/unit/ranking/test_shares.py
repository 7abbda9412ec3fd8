import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import (
    bradley_terry,
    bradley_terry_batch,
    min_max,
    rank_rewards,
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


@pytest.mark.parametrize("n", [2, 3, 8, 16])
@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_bradley_terry_agrees_with_l_bfgs_b(n: int, ridge: float) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="the oracle needs scipy (extra dev)")
    for seed in range(5):
        shares = random_shares(n, 3 * n, seed)
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


@pytest.mark.parametrize("ridge", [1e-8, 1e-3, 1.0, 1e4])
def test_bradley_terry_converges_where_plain_newton_overshoots(ridge: float) -> None:
    unbeaten = [(first, second, 1.0) for first in range(8) for second in range(first + 1, 8)] * 5
    beta = np.array(bradley_terry(8, unbeaten, ridge=ridge))
    assert np.abs(loss_and_slope(beta, unbeaten, ridge)[1]).max() < 1e-7
    assert (np.diff(beta) < 0).all()


def test_an_entrant_without_a_share_has_no_strength() -> None:
    beta = bradley_terry(4, [(0, 2, 1.0)])
    assert beta[1] is beta[3] is None
    assert beta[0] == pytest.approx(-beta[2]) and beta[0] > 0
    assert bradley_terry(3, []) == [None] * 3
    assert bradley_terry(0, []) == []


def test_a_batch_gives_what_single_groups_give() -> None:
    sizes = [2, 8, 5, 8, 3]
    won = np.zeros((len(sizes), 8, 8))
    for group, n in enumerate(sizes):
        for first, second, share in random_shares(n, 4 * n, group):
            won[group, first, second] += share
            won[group, second, first] += 1 - share
    together = bradley_terry_batch(won)
    assert together.shape == (5, 8)
    for group, n in enumerate(sizes):
        alone = bradley_terry(n, random_shares(n, 4 * n, group))
        assert together[group, :n] == pytest.approx([0.0 if b is None else b for b in alone], abs=1e-9)
        assert (together[group, n:] == 0.0).all()


@pytest.mark.parametrize("shape", [(0, 4, 4), (3, 0, 0), (3, 1, 1)])
def test_an_empty_batch_is_fitted_too(shape: tuple[int, int, int]) -> None:
    assert bradley_terry_batch(np.zeros(shape)).tolist() == np.zeros(shape[:2]).tolist()


@pytest.mark.parametrize(("share", "ridge"), [(-0.1, 0.0), (1.1, -1.0), (float("nan"), 0.0)])
def test_bradley_terry_refuses_what_is_no_share_and_a_ridge_that_does_not_hold(
    share: float, ridge: float
) -> None:
    with pytest.raises(ValueError, match="share"):
        bradley_terry(2, [(0, 1, share)])
    with pytest.raises(ValueError, match="won"):
        bradley_terry_batch(np.full((1, 2, 2), min(share, -share)))
    with pytest.raises(ValueError, match="ridge"):
        bradley_terry(2, [(0, 1, 1.0)], ridge=ridge)


@settings(max_examples=40)
@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(0.501, 1.0))
def test_the_two_shares_of_a_match_add_up_to_one(first: float, second: float, gamma: float) -> None:
    shares = [soft_share(outcome, gamma) for outcome in (Outcome(first, second), Outcome(second, first))]
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("gamma", [0.5, 1.01, float("nan")])
def test_a_margin_parameter_outside_its_range_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        soft_share(Outcome(1.0, 0.0), gamma)


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


def test_ties_share_their_mean_rank_and_who_is_judged_alone_gets_what_equals_get() -> None:
    assert rank_rewards([3.0, 1.0, 3.0, None, 0.0]) == pytest.approx([5 / 6, 1 / 3, 5 / 6, None, 0.0])
    assert rank_rewards([2.0, 2.0]) == [0.5, 0.5] and rank_rewards([None, 4.0]) == [None, 0.5]
    assert min_max([None, 4.0]) == [None, 0.0]
    assert min_max([]) == rank_rewards([]) == []
