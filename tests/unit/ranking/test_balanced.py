import random
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import (
    balanced_matches,
    fit_margins,
    fit_step,
    near_regular_graph,
    position_offset,
    score_level,
)
from scope_selfplay.ranking.matches import ComparisonGraph, Match
from tests.unit.ranking.judges import biased, qualities

SIZES_AND_CALLS = st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(n - 1, 3 * n * n)))


@pytest.mark.parametrize("offset", [None, 0.4])
@pytest.mark.parametrize("level", [0.0, 0.6])
def test_the_fit_is_the_ridge_solution(offset: float | None, level: float) -> None:
    """Of the margins, and of the sums by their level, each without its mean; without the matches that failed. The ridge
    is that of the grid with the highest marginal likelihood.
    """
    n, matches = 6, balanced_matches(6, 11, random.Random(1))
    judge = biased(qualities(n, 3), 0.4, 0.8, 5)
    outcomes = [None if number in (2, 7) else judge(match) for number, match in enumerate(matches)]
    judged = [(match, outcome) for match, outcome in zip(matches, outcomes, strict=True) if outcome]
    # The last column is a free offset.
    contrasts, totals = np.zeros((2, len(judged), n + 1))
    for row, (match, _) in enumerate(judged):
        contrasts[row, [match.first, match.second, n]] = 1.0, -1.0, offset is None
        totals[row, list(match)] = 1.0
    margins = np.array([first - second - (offset or 0.0) for _, (first, second) in judged])
    sums = np.array([first + second for _, (first, second) in judged])
    rows, target = contrasts, margins
    if level:
        rows = np.vstack([rows, level**0.5 * (totals - totals.mean(axis=0))])
        target = np.concatenate([target, level**0.5 * (sums - sums.mean())])

    def unlikeliness(ridge: float) -> float:
        spread = np.eye(len(rows)) + rows @ rows.T / ridge
        unexplained = target @ np.linalg.solve(spread, target)
        return float(len(rows) * np.log(unexplained) + np.linalg.slogdet(spread)[1])

    best = min(np.logspace(-6, 1, 29), key=unlikeliness)
    expected = np.linalg.solve(rows.T @ rows + best * np.eye(n + 1), rows.T @ target)[:n]
    assert fit_margins(n, matches, outcomes, offset=offset, level=level) == pytest.approx(list(expected))


def test_a_negative_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"level is -0\.1"):
        fit_margins(2, [Match(0, 1)], [Outcome(1.0, 0.0)], level=-0.1)


@settings(max_examples=40)
@given(SIZES_AND_CALLS, st.integers(0, 100))
def test_a_balanced_plan_is_balanced(size_and_calls: tuple[int, int], seed: int) -> None:
    """Pairs repeat only when all have met, and then in the other order."""
    n, calls = size_and_calls
    matches = balanced_matches(n, calls, random.Random(seed))
    degrees, lead = Counter[int](), Counter[int]()
    for first, second in matches:
        degrees.update((first, second))
        lead[first] += 1
        lead[second] -= 1
    assert len(matches) == calls
    # All are connected.
    incidence = np.zeros((calls, n))
    incidence[np.arange(calls)[:, None], matches] = 1, -1
    assert np.linalg.matrix_rank(incidence) == n - 1
    assert len(degrees) == n and max(degrees.values()) - min(degrees.values()) <= 1
    assert max(map(abs, lead.values())) <= 1
    shown = Counter(matches)
    met = [shown[one, other] + shown[other, one] for one in range(n) for other in range(one)]
    assert max(met) - min(met) <= 1
    assert all(abs(shown[one, other] - shown[other, one]) <= 1 for one in range(n) for other in range(one))


def test_everybody_can_meet_anybody_and_too_few_calls_are_refused() -> None:
    met = {frozenset(match) for seed in range(60) for match in balanced_matches(6, 5, random.Random(seed))}
    assert len(met) == 15
    with pytest.raises(ValueError, match="6 calls cannot connect 8 entrants: at least 7"):
        balanced_matches(8, 6, random.Random(0))


def test_a_plan_is_the_same_on_every_machine_and_in_every_version() -> None:
    """So that a benchmark's figures can be made again; what is near to equal is rounded before it is compared."""
    sizes = [(n, edges) for n in range(2, 12) for edges in range(n - 1, n * (n - 1) // 2 + 1)]
    plans = [sorted(near_regular_graph(n, edges)) for n, edges in sizes]
    assert sha256(str(plans).encode()).hexdigest()[:12] == "1eb99579c7b2"
    matches = [[tuple(each) for each in balanced_matches(n, 2 * n, random.Random(n))] for n in range(1, 12)]
    assert sha256(str(matches).encode()).hexdigest()[:12] == "ffd0afd268f3"


def test_the_offset_is_that_of_generalised_least_squares() -> None:
    """With the strengths of every group as random effects, of half the variance of the noise."""
    rng, pull, weight, groups = random.Random(2), 0.0, 0.0, []
    for n in (2, 3, 5):
        matches = [Match(*rng.sample(range(n), 2)) for _ in range(3 * n)]
        margins = [rng.gauss(1.0, 2.0) for _ in matches]
        groups.append((matches, [Outcome(margin, 0.0) for margin in margins]))
        contrasts = np.array([np.eye(n)[first] - np.eye(n)[second] for first, second in matches])
        inverse = np.linalg.inv(np.eye(len(matches)) + contrasts @ contrasts.T / 2.0)
        pull, weight = pull + inverse.sum(axis=0) @ margins, weight + inverse.sum()
    assert position_offset([*groups, ([Match(0, 1)], [None]), ([], [])]) == pytest.approx(pull / weight)
    assert position_offset([]) == score_level([]) == 0.0 and fit_step([], []) == []


def step_of(noise: float, mood: float, bias: float = 0.0, groups: int = 64) -> list:
    """The graphs of a step of eights. A judge's scores are quality, noise, and a mood that both of a call share."""
    graphs = []
    for seed in range(groups):
        matches = balanced_matches(8, 18, random.Random(seed))
        rng, quality, outcomes = random.Random(1000 + seed), qualities(8, seed), []
        for match in matches:
            shared = rng.gauss(0.0, mood)
            first, second = (quality[entrant] + shared + rng.gauss(0.0, noise) for entrant in match)
            outcomes.append(Outcome(first + bias, second))
        graphs.append((matches, outcomes))
    return graphs


@pytest.mark.parametrize("mood", [0.0, 0.7, 2.0])
def test_the_level_of_scores_counts_for_what_their_moods_leave(mood: float) -> None:
    # The variance of a difference over that of a sum.
    assert score_level(step_of(1.0, mood, groups=256)) == pytest.approx(1.0 / (1.0 + 2.0 * mood**2), abs=0.12)


def test_a_level_is_found_by_what_the_strengths_leave_unexplained() -> None:
    """By hand: strengths of 0.5, 0 and -0.5 leave 0.25 of each margin, so that noise is 3/16 and signal 3/8."""

    def ring(*sums: float) -> tuple:
        both = zip(sums, (0.75, 0.75, -0.75), strict=True)
        scores = [Outcome((total + margin) / 2, (total - margin) / 2) for total, margin in both]
        return [Match(0, 1), Match(1, 2), Match(2, 0)], scores

    too_few = [([Match(0, 1)], [Outcome(3.0, 1.0)]), ([Match(0, 1)], [None])]
    assert score_level([ring(4.0, 2.0, 1.5), *too_few]) == pytest.approx(8 / 15)
    assert score_level([ring(3.5, 2.0, 2.0)]) == 1.0 and score_level([ring(1.0, 3.0, 3.5)]) == 0.0
    assert score_level([tuple(each[:2] for each in ring(4.0, 2.0, 1.5)), *too_few]) == 0.0


def test_a_step_is_fitted_with_the_offset_and_the_level_of_its_judge() -> None:
    graphs = step_of(0.5, 0.3, bias=3.0)
    offset = position_offset(graphs)
    level = score_level(graphs, offset=offset)
    assert offset == pytest.approx(3.0, abs=0.1) and level > 0.5
    # What being shown first is worth does not count as noise.
    assert level > 1.2 * score_level(graphs)
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
