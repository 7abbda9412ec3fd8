"""Ranks with unequal rows teach what one process teaches; `make bench-ranks` tries all 480 cases."""

import os
from itertools import chain, combinations

import pytest

from benchmarks.uneven_ranks import PLACEMENTS, Case, Difference, all_cases, differences

pytestmark = pytest.mark.fsdp

TOLERATED = {"float32": 1e-5, "bfloat16": 1e-2}


def covering_cases() -> list[Case]:
    """Few of them, but every two values of two fields together in one."""
    pairs = {case: set(combinations(enumerate(case), 2)) for case in all_cases()}
    chosen, left = list[Case](), set(chain.from_iterable(pairs.values()))
    while left:
        chosen.append(max(pairs, key=lambda case: len(left & pairs[case])))
        left -= pairs[chosen[-1]]
    return chosen


CASES = all_cases() if os.environ.get("SCOPE_RANK_PLANS") else covering_cases()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Difference]:
    return differences(CASES, tmp_path_factory.mktemp("uneven"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_gradients_and_weights_are_those_of_one_process(case: Case, found: dict[Case, Difference]) -> None:
    apart, most = found[case], TOLERATED[PLACEMENTS[case.placement]]
    assert max(apart.first, apart.second, apart.weights) <= most and apart.moved > 5e-3
