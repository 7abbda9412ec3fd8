"""What must hold for any input of `rewards`: range, monotonicity, symmetry, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scope_selfplay.rewards import (
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
from scope_selfplay.schemas import Priority

units = st.floats(0.0, 1.0)
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


@given(
    st.lists(st.tuples(st.booleans(), weights), min_size=1, max_size=12), st.randoms(use_true_random=False)
)
def test_the_order_of_criteria_does_not_matter(criteria: list[tuple[bool, float]], rng: Any) -> None:
    shuffled = rng.sample(criteria, len(criteria))
    assert rubric_score(*zip(*criteria, strict=True)) == rubric_score(*zip(*shuffled, strict=True))


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 5))
def test_missing_verdicts_are_left_out(met: list[bool], missing: int) -> None:
    assert rubric_score([*met, *[None] * missing]) == rubric_score(met)


@given(st.lists(st.tuples(st.booleans(), weights), min_size=1, max_size=8), st.sampled_from([0.5, 2.0, 64.0]))
def test_scaling_all_weights_changes_nothing(criteria: list[tuple[bool, float]], factor: float) -> None:
    met, weight = zip(*criteria, strict=True)
    assert rubric_score(met, [factor * w for w in weight]) == pytest.approx(rubric_score(met, weight))


def test_a_rubric_without_any_verdict_has_no_score() -> None:
    assert rubric_score([None, None]) is None
    assert rubric_score([None, True], [1.0, 0.0]) is None


@pytest.mark.parametrize(
    ("met", "weight"),
    [
        ([], None),
        ([True, False], [0.0, 0.0]),
        ([True], [1.0, 1.0]),
        ([True, True], [1.0, -1.0]),
        ([True], [math.nan]),
        ([True], [math.inf]),
        ([1.5], None),
        ([-0.5], None),
        ([math.nan], None),
    ],
)
def test_an_impossible_rubric_is_refused(met: list[float], weight: list[float] | None) -> None:
    with pytest.raises(ValueError, match=r"rubric|weight|verdict"):
        rubric_score(met, weight)


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


@given(units)
def test_difficulty_is_symmetric_around_one_half(mean: float) -> None:
    assert difficulty_reward(mean) == pytest.approx(difficulty_reward(1.0 - mean))


@given(units, targets)
def test_mirroring_mean_and_target_changes_nothing(mean: float, target: float) -> None:
    assert difficulty_reward(mean, target) == pytest.approx(difficulty_reward(1.0 - mean, 1.0 - target))


@pytest.mark.parametrize(
    ("mean", "target"), [(0.5, 0.0), (0.5, 1.0), (0.5, math.nan), (1.1, 0.5), (math.nan, 0.5)]
)
def test_a_difficulty_out_of_range_is_refused(mean: float, target: float) -> None:
    with pytest.raises(ValueError, match=r"target|mean"):
        difficulty_reward(mean, target)


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_longer_answer_never_keeps_more(first: int, second: int) -> None:
    short, long = sorted((first, second))
    assert 1.0 >= length_factor(short) >= length_factor(long) >= 0.05


@given(st.integers(0, 1024))
def test_the_length_penalty_is_symmetric_around_its_middle(offset: int) -> None:
    middle = (1.0 + 0.05) / 2.0
    assert length_factor(1024 + offset) - middle == pytest.approx(middle - length_factor(2048 - offset))


@given(st.integers(0, 5000), st.integers(0, 1000), st.integers(1, 1000), units)
def test_the_length_factor_stays_between_its_floor_and_1(
    tokens: int, soft: int, width: int, floor: float
) -> None:
    assert floor <= length_factor(tokens, soft, soft + width, floor) <= 1.0


@given(st.integers(0, 20_000))
def test_a_floor_of_1_switches_the_penalty_off(tokens: int) -> None:
    assert length_factor(tokens, floor=1.0) == 1.0


@pytest.mark.parametrize(
    "arguments",
    [(-1,), (5, 10, 10), (5, 20, 10), (5, -1, 10), (5, 1, 2, 1.5), (5, 1, 2, -0.5), (5, 1, 2, math.nan)],
)
def test_impossible_lengths_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"tokens|limits|floor"):
        length_factor(*arguments)


@given(st.integers(0, 50), st.integers(1, 10))
def test_a_further_search_pays_until_saturation(searches: int, saturation: int) -> None:
    before, after = search_reward(searches, saturation), search_reward(searches + 1, saturation)
    assert 0.0 <= before <= after <= 1.0
    assert (after > before) == (searches < saturation)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: search_reward(-1),
        lambda: search_reward(1, 0),
        lambda: challenger_format(0, 0, 0, 1, False),
        lambda: challenger_format(3, 2, 0, 1, False),
        lambda: challenger_format(-1, 2, 0, 1, False),
        lambda: challenger_format(1, 2, -1, 1, False),
        lambda: challenger_format(1, 2, 1, 0, False),
        lambda: solver_format(0, 0, 0, False),
        lambda: solver_format(2, 1, 0, False),
        lambda: solver_format(1, 2, -1, False),
    ],
)
def test_impossible_counts_are_refused(call: Callable[[], float | None]) -> None:
    with pytest.raises(ValueError, match=r"turns|search|saturation"):
        call()


@given(units, st.sampled_from([True, False, None]), st.none() | units)
def test_a_challenger_reward_stays_within_its_weights(
    form: float, gates: bool | None, mean: float | None
) -> None:
    reward = challenger_reward(form, gates, mean)
    assert reward is None or 0.0 <= reward <= 1.5


@given(st.sampled_from([True, False, None]), st.none() | units)
def test_a_challenger_without_any_format_gets_0(gates: bool | None, mean: float | None) -> None:
    assert challenger_reward(0.0, gates, mean) == 0.0


@given(st.floats(0.01, 1.0), st.none() | units)
def test_a_failed_gate_leaves_the_format_reward_only(form: float, mean: float | None) -> None:
    assert challenger_reward(form, False, mean) == 0.5 * form


@given(st.floats(0.01, 1.0), units)
def test_a_passed_gate_adds_the_difficulty_reward(form: float, mean: float) -> None:
    assert challenger_reward(form, True, mean) == pytest.approx(0.5 * form + difficulty_reward(mean))


@pytest.mark.parametrize(("gates", "mean"), [(True, None), (None, 0.5), (None, None)])
def test_a_missing_judgement_masks_the_challenger(gates: bool | None, mean: float | None) -> None:
    assert challenger_reward(0.5, gates, mean) is None


@given(units, units, st.integers(0, 5000), units, units)
def test_a_solver_reward_grows_with_its_score(
    first: float, second: float, tokens: int, form: float, search: float
) -> None:
    low, high = (solver_reward(score, tokens, form, search) for score in sorted((first, second)))
    assert low is not None and high is not None and 0.0 <= low <= high <= 1.6


@given(units, st.integers(0, 5000), st.integers(0, 5000), units, units)
def test_a_solver_gains_nothing_by_length(
    score: float, first: int, second: int, form: float, search: float
) -> None:
    short, long = (solver_reward(score, tokens, form, search) for tokens in sorted((first, second)))
    assert short is not None and long is not None and short >= long


@given(st.integers(0, 5000), units, units)
def test_a_missing_score_masks_the_solver(tokens: int, form: float, search: float) -> None:
    assert solver_reward(None, tokens, form, search) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: challenger_reward(1.5, True, 0.5),
        lambda: challenger_reward(1.0, True, 1.5),
        lambda: challenger_reward(1.0, True, 0.5, format_weight=-1.0),
        lambda: solver_reward(1.5, 10, 1.0, 1.0),
        lambda: solver_reward(1.0, -1, 1.0, 1.0),
        lambda: solver_reward(1.0, 10, math.nan, 1.0),
        lambda: solver_reward(1.0, 10, 1.0, 2.0),
        lambda: solver_reward(None, 10, 1.0, 1.0, search_weight=math.inf),
    ],
)
def test_reward_inputs_out_of_range_are_refused(call: Callable[[], float | None]) -> None:
    with pytest.raises(ValueError, match=r"must|target"):
        call()


@pytest.mark.parametrize("scores", [[0.2] * 8, [0.8] * 3])
def test_rounding_does_not_push_a_mean_out_of_the_window(scores: list[float]) -> None:
    mean = sum(scores) / len(scores)
    assert not 0.2 <= mean <= 0.8
    assert in_window(mean)


def test_a_mean_just_outside_the_window_is_rejected() -> None:
    assert not in_window(0.2 - 1e-6)
    assert not in_window(0.8 + 1e-6)


@given(units, units, units)
def test_a_wider_window_keeps_what_a_narrower_one_kept(mean: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert in_window(mean, low, high) <= in_window(mean, low / 2.0, (1.0 + high) / 2.0)


@pytest.mark.parametrize(
    ("mean", "low", "high"), [(0.5, 0.8, 0.2), (0.5, -0.1, 1.0), (0.5, 0.0, 1.1), (2.0, 0.2, 0.8)]
)
def test_an_impossible_window_is_refused(mean: float, low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"window|mean"):
        in_window(mean, low, high)


@given(st.lists(st.tuples(units, st.sampled_from(Priority)), min_size=1, max_size=8), units)
def test_an_explicit_reward_lies_between_0_and_1(scored: list[tuple[float, Priority]], form: float) -> None:
    scores, priorities = zip(*scored, strict=True)
    found = explicit_reward(scores, [priority_weight(priority) for priority in priorities], form)
    assert found is not None and 0.0 <= found <= 1.0


@given(st.floats(0.0, 10.0), units)
def test_an_implicit_reward_grows_with_score_and_format(score: float, form: float) -> None:
    assert 0.0 <= implicit_reward(score, form) <= implicit_reward(10.0, 1.0) == 2.0


@given(st.integers(2, 64), st.data())
def test_an_entrant_and_its_mirror_share_the_wins(entrants: int, data: st.DataObject) -> None:
    wins = data.draw(st.integers(0, 2 * (entrants - 1))) / 2.0
    share = wins / (entrants - 1)
    assert pairwise_reward(share, 0.0) + pairwise_reward(1.0 - share, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: implicit_reward(11.0, 1.0),
        lambda: explicit_reward([], [], 1.0),
        lambda: explicit_reward([0.5], [1.0, 1.0], 1.0),
        lambda: pairwise_reward(1.5, 1.0),
        lambda: pairwise_reward(-0.5, 1.0),
    ],
)
def test_impossible_baseline_inputs_are_refused(call: Callable[[], float | None]) -> None:
    with pytest.raises(ValueError, match=r"must|weights"):
        call()
