"""What must hold for any input of `rewards`: range, monotonicity, symmetry, and what is refused."""

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scope_selfplay.base.values import Priority
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.rewards.equations import (
    challenger_format,
    challenger_reward,
    difficulty_reward,
    explicit_reward,
    implicit_reward,
    in_window,
    length_factor,
    pairwise_reward,
    priority_weight,
    rubric_score,
    search_reward,
    solver_format,
    solver_reward,
)

units = st.floats(0.0, 1.0)
CHALLENGER, SOLVER = ChallengerConfig(), SolverConfig()
targets = st.floats(0.01, 0.99)
weights = st.floats(0.01, 100.0)


@given(st.lists(st.tuples(st.booleans(), weights), min_size=1, max_size=12))
def test_a_rubric_score_lies_between_0_and_1(criteria: list[tuple[bool, float]]) -> None:
    score = rubric_score([met for met, _ in criteria], [weight for _, weight in criteria])
    assert score is not None and 0.0 <= score <= 1.0


@given(st.lists(st.tuples(st.booleans(), weights), min_size=1, max_size=12), st.data())
def test_meeting_one_more_criterion_raises_the_score(
    criteria: list[tuple[bool, float]], data: st.DataObject
) -> None:
    met, weight = [met for met, _ in criteria], [weight for _, weight in criteria]
    missed = [index for index, value in enumerate(met) if not value]
    assume(missed)
    better = list(met)
    better[data.draw(st.sampled_from(missed))] = True
    before, after = rubric_score(met, weight), rubric_score(better, weight)
    assert before is not None and after is not None and after > before


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 5))
def test_missing_verdicts_are_left_out(met: list[bool], missing: int) -> None:
    assert rubric_score([*met, *[None] * missing]) == rubric_score(met)


def test_a_rubric_without_any_verdict_has_no_score() -> None:
    assert rubric_score([None, None]) is None
    assert rubric_score([None, True], [1.0, 0.0]) is None
    assert rubric_score([]) is None


@given(units, targets)
def test_a_difficulty_reward_lies_between_0_and_1(mean: float, target: float) -> None:
    assert 0.0 <= difficulty_reward(mean, target) <= 1.0


@given(targets)
def test_difficulty_pays_most_at_the_target_and_nothing_at_the_nearer_end(target: float) -> None:
    assert difficulty_reward(target, target) == 1.0
    assert difficulty_reward(0.0 if target <= 0.5 else 1.0, target) == pytest.approx(0.0)


@given(units, units, targets)
def test_difficulty_never_pays_more_further_from_the_target(
    first: float, second: float, target: float
) -> None:
    near, far = sorted((first, second), key=lambda mean: abs(mean - target))
    assert difficulty_reward(near, target) >= difficulty_reward(far, target)


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_longer_answer_never_keeps_more(first: int, second: int) -> None:
    short, long = sorted((first, second))
    assert 1.0 >= length_factor(short) >= length_factor(long) >= 0.05


@given(st.integers(0, 5000), st.integers(0, 1000), st.integers(1, 1000), units)
def test_the_length_factor_stays_between_its_floor_and_1(
    tokens: int, soft: int, width: int, floor: float
) -> None:
    assert floor <= length_factor(tokens, soft, soft + width, floor) <= 1.0


@given(st.integers(0, 50))
def test_a_further_search_pays_up_to_three(searches: int) -> None:
    before, after = search_reward(searches), search_reward(searches + 1)
    assert 0.0 <= before <= after <= 1.0
    assert (after > before) == (searches < 3)


@st.composite
def turn_counts(draw: st.DrawFn) -> tuple[int, int]:
    turns = draw(st.integers(1, 10))
    return draw(st.integers(0, turns)), turns


@given(turn_counts(), st.integers(0, 9), st.integers(1, 3), st.booleans())
def test_a_challenger_format_grows_with_each_of_its_parts(
    counts: tuple[int, int], searches: int, expected: int, has_task: bool
) -> None:
    thinking, turns = counts
    score = challenger_format(thinking, turns, searches, expected, has_task)
    assert 0.0 <= score <= 1.0
    assert challenger_format(turns, turns, searches, expected, has_task) >= score
    assert challenger_format(thinking, turns, searches + 1, expected, has_task) >= score
    assert challenger_format(thinking, turns, searches, expected, True) >= score
    assert challenger_format(turns, turns, expected, expected, True) == 1.0


@given(turn_counts(), st.integers(0, 9), st.booleans())
def test_a_solver_format_grows_with_each_of_its_parts(
    counts: tuple[int, int], searches: int, has_answer: bool
) -> None:
    thinking, turns = counts
    score = solver_format(thinking, turns, searches, has_answer)
    assert 0.0 <= score <= 1.0
    assert solver_format(turns, turns, searches, has_answer) >= score
    assert solver_format(thinking, turns, searches + 1, has_answer) >= score
    assert solver_format(thinking, turns, searches, True) >= score


@given(st.integers(0, 9))
def test_a_solver_that_answers_at_once_gets_nothing_for_tools(searches: int) -> None:
    assert solver_format(1, 1, searches, True) == pytest.approx(2.0 / 3.0)


@given(st.none() | units)
def test_a_challenger_without_any_format_gets_0(mean: float | None) -> None:
    assert challenger_reward(0.0, mean, CHALLENGER) == 0.0


@given(st.floats(0.01, 1.0))
def test_a_failed_gate_leaves_the_format_reward_only(form: float) -> None:
    assert challenger_reward(form, None, CHALLENGER) == 0.5 * form


@given(st.floats(0.01, 1.0), units)
def test_a_passed_gate_adds_the_difficulty_reward(form: float, mean: float) -> None:
    assert challenger_reward(form, mean, CHALLENGER) == pytest.approx(0.5 * form + difficulty_reward(mean))


@given(units, units, st.integers(0, 5000), units, units)
def test_a_solver_reward_grows_with_its_score(
    first: float, second: float, tokens: int, form: float, search: float
) -> None:
    low, high = (solver_reward(score, tokens, form, search, SOLVER) for score in sorted((first, second)))
    assert low is not None and high is not None and 0.0 <= low <= high <= 1.6


@given(units, st.integers(0, 5000), st.integers(0, 5000), units, units)
def test_a_solver_gains_nothing_by_length(
    score: float, first: int, second: int, form: float, search: float
) -> None:
    short, long = (solver_reward(score, tokens, form, search, SOLVER) for tokens in sorted((first, second)))
    assert short is not None and long is not None and short >= long


@given(st.integers(0, 5000), units, units)
def test_a_missing_score_masks_the_solver(tokens: int, form: float, search: float) -> None:
    assert solver_reward(None, tokens, form, search, SOLVER) is None


@pytest.mark.parametrize("scores", [[0.2] * 8, [0.8] * 3])
def test_rounding_does_not_push_a_mean_out_of_the_window(scores: list[float]) -> None:
    mean = sum(scores) / len(scores)
    assert not 0.2 <= mean <= 0.8
    assert in_window(mean)


def test_a_mean_just_outside_the_window_is_rejected() -> None:
    assert not in_window(0.2 - 1e-6)
    assert not in_window(0.8 + 1e-6)


@given(st.lists(st.tuples(units, st.sampled_from(Priority)), min_size=1, max_size=8), units)
def test_an_explicit_reward_lies_between_0_and_1(scored: list[tuple[float, Priority]], form: float) -> None:
    scores, priorities = zip(*scored, strict=True)
    found = explicit_reward(scores, [priority_weight(priority) for priority in priorities], form)
    assert found is not None and 0.0 <= found <= 1.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rubric_score([True], [1.0, 1.0]), "zip"),
        (lambda: rubric_score([1.5]), "verdict must lie in"),
        (lambda: rubric_score([-0.5]), "verdict must lie in"),
        (lambda: rubric_score([math.nan]), "verdict must lie in"),
        (lambda: difficulty_reward(1.1), "mean must lie in"),
        (lambda: challenger_reward(1.5, 0.5, CHALLENGER), "format must lie in"),
        (lambda: challenger_reward(1.0, 1.5, CHALLENGER), "mean must lie in"),
        (lambda: solver_reward(1.5, 10, 1.0, 1.0, SOLVER), "score must lie in"),
        (lambda: solver_reward(1.0, 10, math.nan, 1.0, SOLVER), "format must lie in"),
        (lambda: solver_reward(1.0, 10, 1.0, 2.0, SOLVER), "search must lie in"),
        (lambda: in_window(2.0, 0.2, 0.8), "mean must lie in"),
        (lambda: implicit_reward(11.0, 1.0), "a tenth of the score must lie in"),
        (lambda: explicit_reward([0.5], [1.0, 1.0], 1.0), "zip"),
        (lambda: pairwise_reward(1.5, 1.0), "share of wins must lie in"),
    ],
)
def test_an_impossible_input_is_refused(call: Callable[[], float | None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
