import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import balanced, balanced_matches, fit_margins
from scope_selfplay.ranking.matches import Match
from tests.unit.ranking.judges import biased, drive, failing, perfect, qualities

SIZES_AND_CALLS = st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(n - 1, 3 * n * n)))


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


@pytest.mark.parametrize("ridge", [0.0, -1.0])
def test_a_ridge_that_is_not_positive_is_refused(ridge: float) -> None:
    with pytest.raises(ValueError, match="ridge"):
        fit_margins(2, [Match(0, 1)], [Outcome(1.0, 0.0)], ridge=ridge)
