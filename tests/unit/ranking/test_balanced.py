import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import (
    balanced,
    balanced_matches,
    fit_margins,
    fit_step,
    position_offset,
    score_level,
)
from scope_selfplay.ranking.matches import ComparisonGraph, Match
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


def test_failed_matches_are_left_out() -> None:
    quality = qualities(8, 6)
    matches = balanced_matches(8, 28, random.Random(0))
    judge = failing(perfect(quality), 0.3, 1)
    outcomes = [judge(match) for match in matches]
    kept = [(match, outcome) for match, outcome in zip(matches, outcomes, strict=True) if outcome is not None]
    assert len(kept) < 28
    alone = fit_margins(8, *(list(column) for column in zip(*kept, strict=True)))
    assert fit_margins(8, matches, outcomes) == alone


def test_parts_that_never_met_are_each_centred() -> None:
    matches = [Match(0, 1), Match(2, 3)]
    strengths = fit_margins(4, matches, [Outcome(8.0, 2.0), Outcome(1.0, 0.0)], ridge=0.5, offset=0.0)
    assert strengths[0] == pytest.approx(-strengths[1])
    assert strengths[2] == pytest.approx(-strengths[3])


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"ridge": 0.0}, "ridge"), ({"ridge": -1.0}, "ridge"), ({"level": -0.1}, "weight of the sums")],
)
def test_a_ridge_that_is_not_positive_and_a_negative_level_are_refused(
    settings: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fit_margins(2, [Match(0, 1)], [Outcome(1.0, 0.0)], **settings)


def laplacian_of(n: int, matches: list[Match]) -> np.ndarray:
    laplacian = np.zeros((n, n))
    for first, second in matches:
        laplacian[[first, second], [first, second]] += 1
        laplacian[[first, second], [second, first]] -= 1
    return laplacian


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
    # All are connected.
    assert np.linalg.matrix_rank(laplacian_of(n, matches)) == n - 1
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


@pytest.mark.parametrize(
    ("n", "calls", "most"), [(8, 18, 1.10), (8, 14, 1.15), (16, 42, 1.13), (16, 30, 1.31)]
)
def test_the_graph_is_near_the_best_that_so_many_calls_allow(n: int, calls: int, most: float) -> None:
    laplacian = laplacian_of(n, balanced_matches(n, calls, random.Random(0)))
    variance = (1 / np.linalg.eigvalsh(laplacian)[1:]).sum()
    # Equal eigenvalues would be the best; no graph with so few edges has them.
    assert variance <= most * (n - 1) ** 2 / (2 * calls)


def test_everybody_can_meet_anybody() -> None:
    met = {frozenset(match) for seed in range(60) for match in balanced_matches(6, 5, random.Random(seed))}
    assert len(met) == 15


def test_too_few_calls_are_refused_and_one_entrant_needs_none() -> None:
    with pytest.raises(ValueError, match="6 calls cannot connect 8 entrants: at least 7"):
        balanced_matches(8, 6, random.Random(0))
    assert balanced_matches(1, 0, random.Random(0)) == balanced_matches(1, 5, random.Random(0)) == []


@pytest.mark.parametrize("bias", [-1.3, 0.0, 0.7])
def test_the_pooled_offset_is_nearer_to_the_bias_than_the_mean_where_a_plan_favours_the_better(
    bias: float,
) -> None:
    rng = random.Random(4)
    groups = []
    for seed in range(40):
        # Here the better entrant is nearly always shown first, which a mean of margins would take for bias.
        quality = sorted(qualities(6, seed), reverse=True)
        matches = [Match(*sorted(rng.sample(range(6), 2))) for _ in range(8)] + [Match(5, 0)]
        exact = biased(quality, bias, 0.0, seed)
        groups.append((matches, [exact(match) for match in matches]))
    margins = [first - second for _, outcomes in groups for first, second in outcomes]
    assert abs(position_offset(groups) - bias) < 0.3 < 0.5 < abs(sum(margins) / len(margins) - bias)


def test_the_pooled_offset_averages_the_noise_of_a_step() -> None:
    groups = []
    for seed in range(64):
        matches = balanced_matches(8, 18, random.Random(seed))
        judge = failing(biased(qualities(8, seed), 0.8, 0.6, seed), 0.1, seed)
        groups.append((matches, [judge(match) for match in matches]))
    assert position_offset(groups) == pytest.approx(0.8, abs=0.1)


def test_nothing_judged_gives_no_offset() -> None:
    assert position_offset([]) == position_offset([([Match(0, 1)], [None])]) == 0.0


def step_of(judge_of, groups: int = 64, n: int = 8, calls: int = 18) -> list:
    """The comparison graphs of one step, each group before its own judge."""
    graphs = []
    for seed in range(groups):
        matches = balanced_matches(n, calls, random.Random(seed))
        judge = judge_of(qualities(n, seed), random.Random(1000 + seed))
        graphs.append((matches, [judge(match) for match in matches]))
    return graphs


def scoring(noise: float, mood: float, bias: float = 0.0):
    """A judge that gives scores: quality, noise of their own, and a mood that both scores of a call share."""

    def judge_of(quality: list[float], rng: random.Random):
        def judge(match: Match) -> Outcome:
            shared = rng.gauss(0.0, mood)
            first, second = (quality[entrant] + shared + rng.gauss(0.0, noise) for entrant in match)
            return Outcome(first + bias, second)

        return judge

    return judge_of


@pytest.mark.parametrize("mood", [0.0, 0.7, 2.0])
def test_the_level_of_scores_counts_for_what_their_moods_leave(mood: float) -> None:
    level = score_level(step_of(scoring(1.0, mood), groups=256))
    # The variance of a difference over that of a sum.
    assert level == pytest.approx(1.0 / (1.0 + 2.0 * mood**2), abs=0.12)


def test_the_level_of_logits_and_probabilities_counts_for_nothing() -> None:
    scores = step_of(scoring(1.0, 0.0))

    def told(as_outcome) -> list:
        return [(matches, [as_outcome(*outcome) for outcome in outcomes]) for matches, outcomes in scores]

    assert score_level(told(lambda one, other: Outcome((one - other) / 2, (other - one) / 2))) == 0.0
    win = told(lambda one, other: Outcome(1 / (1 + math.exp(other - one)), 1 / (1 + math.exp(one - other))))
    assert score_level(win) == pytest.approx(0.0, abs=1e-6)
    log_win = told(
        lambda one, other: Outcome(-math.log1p(math.exp(other - one)), -math.log1p(math.exp(one - other)))
    )
    assert score_level(log_win) < 0.15


def test_the_position_offset_does_not_count_as_noise() -> None:
    graphs = step_of(scoring(0.5, 0.3, bias=3.0))
    assert score_level(graphs, offset=3.0) > 1.2 * score_level(graphs, offset=0.0)


@pytest.mark.parametrize(
    "graphs",
    [
        [],
        [([Match(0, 1)], [None])],
        [([Match(0, 1)], [Outcome(2.0, 1.0)])],
        [([Match(0, 1), Match(1, 2)], [Outcome(2.0, 1.0), Outcome(3.0, 1.0)])] * 9,
    ],
)
def test_too_few_comparisons_have_no_level(graphs: list) -> None:
    assert score_level(graphs) == 0.0


def test_a_level_sharpens_the_fit_of_a_judge_with_a_scale() -> None:
    graphs = step_of(scoring(1.0, 0.3), groups=128)
    level = score_level(graphs)
    missed = [0.0, 0.0]
    for seed, graph in enumerate(graphs):
        quality = qualities(8, seed)
        centre = sum(quality) / 8
        for side, weight in enumerate((0.0, level)):
            fitted = fit_margins(8, *graph, offset=0.0, level=weight)
            missed[side] += sum(
                (found - value + centre) ** 2 for found, value in zip(fitted, quality, strict=True)
            )
    assert missed[1] < 0.75 * missed[0]


def test_a_step_is_fitted_with_the_offset_and_the_level_of_its_judge() -> None:
    graphs = step_of(scoring(1.0, 0.3, bias=0.8))
    offset = position_offset(graphs)
    level = score_level(graphs, offset=offset)
    assert level > 0.5
    found = fit_step([8] * len(graphs), graphs)
    assert found == [fit_margins(8, *graph, offset=offset, level=level) for graph in graphs]


def test_a_merged_graph_holds_what_was_judged_between_different_answers_once() -> None:
    known, again = Outcome(3.0, 1.0), Outcome(1.0, 2.0)
    graph = ComparisonGraph(
        (Match(0, 1), Match(2, 1), Match(0, 2), Match(2, 0), Match(1, 2), Match(3, 1)),
        (known, known, Outcome(2.0, 2.0), Outcome(2.0, 2.0), again, None),
    )
    merged = graph.merged(["a", "b", "a", "c"])
    assert merged == ComparisonGraph((Match(0, 1), Match(1, 0), Match(2, 1)), (known, again, None))
