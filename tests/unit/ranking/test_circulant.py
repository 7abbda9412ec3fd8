import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.ranking.balanced import balanced_matches
from scope_selfplay.ranking.matches import Match

SIZES_AND_CALLS = st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(n - 1, 3 * n * n)))


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
