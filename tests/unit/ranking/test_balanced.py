import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.ranking import Match, Outcome, balanced, balanced_matches, fit_margins, position_offset
from tests.unit.ranking.judges import drive, failing, perfect, qualities

SIZES_AND_CALLS = st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(n - 1, 3 * n * n)))


def biased(quality: list[float], bias: float, noise: float, seed: int):
    rng = random.Random(seed)
    return lambda match: Outcome(
        quality[match.first] + bias + rng.gauss(0.0, noise), quality[match.second] + rng.gauss(0.0, noise)
    )


def is_connected(n: int, matches: list[Match]) -> bool:
    ahead = defaultdict(set)
    for one, other in matches:
        ahead[one].add(other)
        ahead[other].add(one)
    reached, frontier = {0}, [0]
    while frontier:
        new = ahead[frontier.pop()] - reached
        reached |= new
        frontier += new
    return len(reached) == n


@settings(max_examples=60)
@given(SIZES_AND_CALLS, st.integers(0, 100))
def test_a_balanced_plan_is_balanced(size_and_calls: tuple[int, int], seed: int) -> None:
    n, calls = size_and_calls
    matches = balanced_matches(n, calls, random.Random(seed))
    degrees, lead = Counter[int](), Counter[int]()
    for first, second in matches:
        degrees.update((first, second))
        lead[first] += 1
        lead[second] -= 1
    assert len(matches) == calls
    assert is_connected(n, matches)
    assert len(degrees) == n and max(degrees.values()) - min(degrees.values()) <= 1
    assert max(map(abs, lead.values())) <= 1


@settings(max_examples=60)
@given(SIZES_AND_CALLS)
def test_pairs_repeat_only_when_all_have_met_and_then_in_the_other_order(
    size_and_calls: tuple[int, int],
) -> None:
    n, calls = size_and_calls
    shown = Counter(balanced_matches(n, calls, random.Random(0)))
    met = [shown[one, other] + shown[other, one] for one in range(n) for other in range(one)]
    assert max(met) - min(met) <= 1
    assert all(abs(shown[one, other] - shown[other, one]) <= 1 for one in range(n) for other in range(one))


@pytest.mark.parametrize("n", [21, 32, 47, 64])
def test_plans_of_many_entrants_are_balanced_too(n: int) -> None:
    pairs = n * (n - 1) // 2
    for calls in (n - 1, n, 2 * (n - 1), 3 * n + n // 2, pairs - 1, pairs, pairs + n):
        degrees = Counter(
            entrant for match in balanced_matches(n, calls, random.Random(calls)) for entrant in match
        )
        assert len(degrees) == n and max(degrees.values()) - min(degrees.values()) <= 1


@pytest.mark.parametrize(
    ("n", "calls", "most"), [(8, 18, 1.10), (8, 14, 1.15), (16, 42, 1.13), (16, 30, 1.31)]
)
def test_the_graph_is_near_the_best_that_so_many_calls_allow(n: int, calls: int, most: float) -> None:
    laplacian = np.zeros((n, n))
    for first, second in balanced_matches(n, calls, random.Random(0)):
        laplacian[[first, second], [first, second]] += 1
        laplacian[[first, second], [second, first]] -= 1
    variance = (1 / np.linalg.eigvalsh(laplacian)[1:]).sum()
    # Equal eigenvalues would be the best; no graph with so few edges has them.
    assert variance <= most * (n - 1) ** 2 / (2 * calls)


def test_everybody_can_meet_anybody() -> None:
    met = {frozenset(match) for seed in range(60) for match in balanced_matches(6, 5, random.Random(seed))}
    assert len(met) == 15


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="6 calls cannot connect 8 entrants: at least 7"):
        balanced_matches(8, 6, random.Random(0))


def test_one_entrant_needs_no_calls() -> None:
    assert balanced_matches(1, 0, random.Random(0)) == balanced_matches(1, 5, random.Random(0)) == []


def test_balanced_is_one_wave() -> None:
    driven = drive(balanced(8, 28, random.Random(0)), perfect(qualities(8, 0)))
    assert [len(wave) for wave in driven.waves] == [28]


@settings(max_examples=40)
@given(SIZES_AND_CALLS, st.integers(0, 1000), st.floats(-3.0, 3.0))
def test_exact_margins_are_fitted_exactly(size_and_calls: tuple[int, int], seed: int, bias: float) -> None:
    n, calls = size_and_calls
    quality = qualities(n, seed)
    matches = balanced_matches(n, calls, random.Random(seed))
    exact = biased(quality, bias, 0.0, seed)
    outcomes = [exact(match) for match in matches]
    centre = sum(quality) / n
    fitted = fit_margins(n, matches, outcomes, offset=bias, ridge=1e-7)
    assert fitted == pytest.approx([value - centre for value in quality], abs=1e-4)


def test_the_fit_is_the_ridge_solution() -> None:
    quality, n, ridge = qualities(6, 3), 6, 1.7
    matches = balanced_matches(n, 11, random.Random(1))
    judge = biased(quality, 0.4, 0.8, 5)
    outcomes = [judge(match) for match in matches]
    rows = np.zeros((11 + n, n))
    for row, match in enumerate(matches):
        rows[row, match.first], rows[row, match.second] = 1.0, -1.0
    rows[11:] = np.sqrt(ridge) * np.eye(n)
    margins = np.array([outcome.first - outcome.second - 0.4 for outcome in outcomes] + [0.0] * n)
    expected = np.linalg.lstsq(rows, margins, rcond=None)[0]
    assert fit_margins(n, matches, outcomes, ridge=ridge, offset=0.4) == pytest.approx(list(expected))


def test_the_offset_of_a_group_is_fitted_and_shrunk_to_zero() -> None:
    both = [Match(0, 1), Match(1, 0)]
    outcomes = [Outcome(3.0, 0.0), Outcome(1.0, 0.0)]
    # Margins 3 and -1 for entrant 0 less 1: half the difference is quality, half the sum position.
    assert fit_margins(2, both, outcomes, ridge=1e-9) == pytest.approx([0.5, -0.5])
    one = fit_margins(2, both[:1], outcomes[:1], ridge=1.0)
    without = fit_margins(2, both[:1], outcomes[:1], ridge=1.0, offset=0.0)
    assert 0 < one[0] < without[0]


@settings(max_examples=40)
@given(st.floats(0.01, 100.0), st.integers(0, 1000))
def test_the_unit_of_the_margins_does_not_change_the_fit(unit: float, seed: int) -> None:
    quality = qualities(8, seed)
    matches = balanced_matches(8, 18, random.Random(seed))
    judge = biased(quality, 0.5, 0.8, seed)
    outcomes = [judge(match) for match in matches]
    scaled = [Outcome(unit * first, unit * second) for first, second in outcomes]
    fitted = fit_margins(8, matches, outcomes)
    assert fit_margins(8, matches, scaled) == pytest.approx(
        [unit * value for value in fitted], abs=1e-6 * unit
    )


def test_noise_draws_strengths_to_the_middle_and_exactness_does_not() -> None:
    matches = balanced_matches(16, 24, random.Random(2))
    quality = qualities(16, 2)
    exact = [perfect(quality)(match) for match in matches]
    centre = sum(quality) / 16
    assert fit_margins(16, matches, exact) == pytest.approx([value - centre for value in quality], abs=1e-4)
    judge = biased([0.0] * 16, 0.0, 1.0, 7)
    noise = [judge(match) for match in matches]
    assert np.std(fit_margins(16, matches, noise)) < 0.75 * np.std(
        fit_margins(16, matches, noise, ridge=1e-6)
    )


def test_failed_matches_are_left_out() -> None:
    quality = qualities(8, 6)
    matches = balanced_matches(8, 28, random.Random(0))
    judge = failing(perfect(quality), 0.3, 1)
    outcomes = [judge(match) for match in matches]
    kept = [(match, outcome) for match, outcome in zip(matches, outcomes, strict=True) if outcome is not None]
    assert len(kept) < 28
    alone = fit_margins(8, *(list(column) for column in zip(*kept, strict=True)))
    assert fit_margins(8, matches, outcomes) == alone


def test_an_entrant_without_a_verdict_has_no_strength() -> None:
    matches = [Match(0, 1), Match(1, 2), Match(2, 3)]
    outcomes = [Outcome(1.0, 0.0), None, None]
    strengths = fit_margins(4, matches, outcomes)
    assert strengths[2:] == [None, None]
    assert strengths[0] > strengths[1]
    assert fit_margins(4, matches, [None] * 3) == [None] * 4


def test_parts_that_never_met_are_each_centred() -> None:
    matches = [Match(0, 1), Match(2, 3)]
    strengths = fit_margins(4, matches, [Outcome(8.0, 2.0), Outcome(1.0, 0.0)], ridge=0.5, offset=0.0)
    assert strengths[0] == pytest.approx(-strengths[1])
    assert strengths[2] == pytest.approx(-strengths[3])


def test_equal_scores_give_equal_strengths() -> None:
    matches = balanced_matches(5, 8, random.Random(0))
    assert fit_margins(5, matches, [Outcome(7.0, 7.0)] * 8) == [0.0] * 5


@pytest.mark.parametrize("bias", [-1.3, 0.0, 0.7])
def test_the_pooled_offset_is_the_bias_whatever_the_plan(bias: float) -> None:
    rng = random.Random(4)
    groups = []
    for seed in range(40):
        # Here the better entrant is nearly always shown first, which a mean of margins would take for bias.
        quality = sorted(qualities(6, seed), reverse=True)
        matches = [Match(*sorted(rng.sample(range(6), 2))) for _ in range(8)] + [Match(5, 0)]
        exact = biased(quality, bias, 0.0, seed)
        groups.append((matches, [exact(match) for match in matches]))
    assert position_offset(groups, ridge=1e-9) == pytest.approx(bias, abs=1e-6)
    margins = [first - second for _, outcomes in groups for first, second in outcomes]
    assert abs(sum(margins) / len(margins) - bias) > 0.5


def test_the_pooled_offset_averages_the_noise_of_a_step() -> None:
    groups = []
    for seed in range(64):
        matches = balanced_matches(8, 18, random.Random(seed))
        judge = failing(biased(qualities(8, seed), 0.8, 0.6, seed), 0.1, seed)
        groups.append((matches, [judge(match) for match in matches]))
    assert position_offset(groups) == pytest.approx(0.8, abs=0.1)


def test_nothing_judged_gives_no_offset() -> None:
    assert position_offset([]) == position_offset([([Match(0, 1)], [None])]) == 0.0


@pytest.mark.parametrize("ridge", [0.0, -1.0])
def test_a_ridge_that_is_not_positive_is_refused(ridge: float) -> None:
    with pytest.raises(ValueError, match="ridge"):
        fit_margins(2, [Match(0, 1)], [Outcome(1.0, 0.0)], ridge=ridge)
    with pytest.raises(ValueError, match="ridge"):
        position_offset([([Match(0, 1)], [Outcome(1.0, 0.0)])], ridge=ridge)
