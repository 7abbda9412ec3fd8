"""Drawing documents: no two stages share one, a resumed run draws the same, and shares come out exactly."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document
from scope_selfplay.corpus.screen import exact_shares, shuffled, take_unused
from scope_selfplay.prompts.pack import Domain

RATIO = Domain(name="any", title="Any", task_types=()).search_turns
seeds = st.integers(0, 2**32)
shares = st.dictionaries(st.text("abc", max_size=2), st.floats(0.0, 1e3), min_size=1, max_size=6).filter(
    lambda weights: sum(weights.values()) > 0
)


def corpus(size: int) -> list[Document]:
    return [Document(id=f"d{number}", title="T", text=f"Text {number}.") for number in range(size)]


def ids(documents: list[Document]) -> list[str]:
    return [document.id for document in documents]


@given(st.lists(st.integers(0, 10), max_size=6), seeds, st.integers(0, 5))
def test_no_two_stages_share_a_document(counts: list[int], seed: int, reserved: int) -> None:
    """A run that goes on takes what an undisturbed one takes, whatever the order of the files."""
    documents = corpus(reserved + sum(counts))
    taken = ids(shuffled(documents, seed=seed))[:reserved]
    for count in counts:
        drawn = ids(take_unused(shuffled(documents, seed=seed), count=count, taken=taken, wanted_by="this"))
        resumed = shuffled(documents[::-1], seed=seed)
        assert drawn == ids(take_unused(resumed, count=count, taken=set(taken), wanted_by="again"))
        assert len(drawn) == count
        taken += drawn
    assert len(set(taken)) == len(taken) == len(documents)


def test_running_out_of_documents_says_how_many_there_are() -> None:
    with pytest.raises(
        CorpusError, match=r"^iteration 2, tasks needs 5 .* corpus's 10 only 4 are not used yet"
    ):
        take_unused(corpus(10), count=5, taken={f"d{n}" for n in range(6)}, wanted_by="iteration 2, tasks")


@given(st.integers(0, 500), shares)
def test_shares_add_up_miss_their_quota_by_less_than_one_and_follow_the_weights(
    n: int, weights: dict[str, float]
) -> None:
    weights = {**weights, "off": 0.0}
    total = sum(weights.values())
    found = Counter(exact_shares(n, weights, random.Random(0)))
    assert sum(found.values()) == n
    assert all(abs(found[choice] - n * weight / total) < 1 + 1e-6 for choice, weight in weights.items())
    for light, heavy in pairwise(sorted(weights, key=lambda choice: weights[choice])):
        assert weights[light] == weights[heavy] or found[light] <= found[heavy]
    assert found["off"] == 0


@pytest.mark.parametrize(
    ("n", "counts"), [(0, []), (1, [1, 0, 0]), (8, [3, 3, 2]), (64, [29, 21, 14]), (2500, [1111, 833, 556])]
)
def test_search_turns_go_by_the_largest_remainder(n: int, counts: list[int]) -> None:
    turns = Counter(exact_shares(n, RATIO, random.Random(0)))
    assert [turns[number] for number in (1, 2, 3)] == (counts or [0, 0, 0])


def test_impossible_weights_are_refused() -> None:
    for weights in ({}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}, {"a": float("inf")}):
        with pytest.raises(ValueError, match=r"weights"):
            exact_shares(3, weights, random.Random(0))
