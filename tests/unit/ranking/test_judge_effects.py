import math
import random

import pytest

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import (
    balanced_matches,
    fit_margins,
    fit_step,
    position_offset,
    score_level,
)
from scope_selfplay.ranking.matches import ComparisonGraph, Match
from tests.unit.ranking.judges import biased, failing, perfect, qualities


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


def test_exact_scores_are_fitted_exactly_at_any_level() -> None:
    quality = qualities(8, 5)
    matches = balanced_matches(8, 18, random.Random(0))
    centre = sum(quality) / 8
    for level in (0.0, 0.3, 1.0):
        outcomes = [Outcome(quality[first] + 4.0, quality[second] + 4.0) for first, second in matches]
        fitted = fit_margins(8, matches, outcomes, level=level)
        assert fitted == pytest.approx([value - centre for value in quality], abs=1e-4)


def test_a_negative_level_is_refused() -> None:
    with pytest.raises(ValueError, match="weight of the sums"):
        fit_margins(2, [Match(0, 1)], [perfect([1.0, 0.0])(Match(0, 1))], level=-0.1)
