"""Drawing documents: no two stages share one, a resumed run draws the same, and shares come out exactly."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document, rng_from
from scope_selfplay.corpus.sample import assign_sources, exact_shares, shuffled, take_unused
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


def samples_of(documents: list[Document], counts: list[int], taken: list[str]) -> list[list[str]]:
    """What stage after stage takes, each without what those before it have taken."""
    drawn: list[list[str]] = []
    for number, count in enumerate(counts):
        used = [*taken, *(id for stage in drawn for id in stage)]
        drawn.append(ids(take_unused(documents, count=count, taken=used, wanted_by=f"stage {number}")))
    return drawn


@given(st.integers(0, 60), seeds, st.randoms(use_true_random=False))
def test_shuffling_holds_every_document_once_whatever_the_order_of_the_files(
    size: int, seed: int, rng: random.Random
) -> None:
    documents = corpus(size)
    ordered = shuffled(documents, seed=seed)
    assert sorted(ids(ordered)) == sorted(ids(documents))
    assert shuffled(rng.sample(documents, size), seed=seed) == ordered


@given(st.integers(1, 60), seeds)
def test_a_document_that_is_added_moves_no_other(size: int, seed: int) -> None:
    larger = shuffled(corpus(size), seed=seed)
    added = f"d{size - 1}"
    assert [id for id in ids(larger) if id != added] == ids(shuffled(corpus(size - 1), seed=seed))


def test_every_document_comes_first_about_as_often_as_any_other() -> None:
    first = Counter(shuffled(corpus(5), seed=seed)[0].id for seed in range(1000))
    assert all(140 <= count <= 260 for count in first.values()) and len(first) == 5


@given(st.lists(st.integers(0, 10), max_size=6), seeds, st.integers(0, 5))
def test_no_two_stages_share_a_document(counts: list[int], seed: int, reserved: int) -> None:
    documents = shuffled(corpus(reserved + sum(counts)), seed=seed)
    taken = ids(documents)[:reserved]
    stages = samples_of(documents, counts, taken)
    found = [id for stage in stages for id in stage]
    assert [len(stage) for stage in stages] == counts
    assert len({*found, *taken}) == len(found) + reserved


@given(st.lists(st.integers(1, 10), min_size=2, max_size=6), seeds, st.data())
def test_a_resumed_run_takes_what_an_undisturbed_one_takes(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    documents = corpus(sum(counts) + 3)
    undisturbed = samples_of(shuffled(documents, seed=seed), counts, [])
    stop = data.draw(st.integers(0, len(counts) - 1))
    taken = {id for stage in undisturbed[:stop] for id in stage}
    resumed = take_unused(
        shuffled(documents[::-1], seed=seed), count=counts[stop], taken=taken, wanted_by="again"
    )
    assert ids(resumed) == undisturbed[stop]


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


@pytest.mark.parametrize(
    "weights", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}, {"a": float("inf")}]
)
def test_impossible_weights_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"weights"):
        exact_shares(3, weights, random.Random(0))


def test_sources_pair_documents_in_order_with_exact_shares() -> None:
    documents, types = corpus(90), {"long-form QA": 2.0, "planning": 1.0}
    sources, again = (
        assign_sources(documents, types, rng_from(7, 1, "tasks", "prompts", 0), ratio=RATIO) for _ in range(2)
    )
    assert [source.document for source in sources] == documents
    assert Counter(source.task_type for source in sources) == {"long-form QA": 60, "planning": 30}
    assert Counter(source.search_turns for source in sources) == {1: 40, 2: 30, 3: 20}
    assert again == sources


def test_task_types_and_search_turns_are_assigned_independently() -> None:
    pairs = Counter(
        (source.task_type, source.search_turns)
        for seed in range(50)
        for source in assign_sources(corpus(18), {"a": 1.0, "b": 1.0}, random.Random(seed), ratio=RATIO)
    )
    assert all(abs(pairs[type, turns] - 50 * 9 * RATIO[turns] / 9) < 45 for type in "ab" for turns in RATIO)
