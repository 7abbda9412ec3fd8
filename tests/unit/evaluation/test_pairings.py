"""Who is shown with whom: every pair as often in one order as in the other, and nobody asked for nothing."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.evaluation.pairs import Pairing, balanced_pairs
from tests.unit.evaluation.contestants import contestant

answers = st.lists(st.sampled_from(["a", "b", None]), max_size=30)


@given(answers, answers, answers, st.integers(0, 5))
def test_every_pair_is_shown_first_as_often_as_second(
    newest: list[str | None], one: list[str | None], other: list[str | None], seed: int
) -> None:
    given = {"S_0": one, "S_1": other, "S_2": newest}
    found = {name: contestant(name, said).rollouts for name, said in given.items()}
    met = balanced_pairs("S_2", found, key=(seed,))
    for old in ("S_0", "S_1"):
        asked = [each for each in met if old in (each.first_name, each.second_name) and not each.is_tie]
        first = sum(each.first_name == "S_2" for each in asked)
        assert abs(2 * first - len(asked)) <= 1
        assert len({each.item_id for each in asked}) == len(asked) <= len(set(found["S_2"]) & set(found[old]))


def shown(
    newest: Sequence[str | None], *earlier: Sequence[str | None], seed: int = 0, both_orders: bool = False
) -> list[Pairing]:
    names = [f"S_{number}" for number in range(len(earlier) + 1)]
    found = {
        name: contestant(name, said).rollouts for name, said in zip(names, (*earlier, newest), strict=True)
    }
    return balanced_pairs(names[-1], found, key=(seed,), both_orders=both_orders)


def test_only_pairs_with_the_newest_are_shown() -> None:
    pairs = Counter(
        frozenset((each.first_name, each.second_name)) for each in shown("xy", ["a", "b"], ["c", "d"])
    )
    assert pairs == {frozenset(("S_0", "S_2")): 2, frozenset(("S_1", "S_2")): 2}
    assert shown(["x"]) == []


def test_both_orders_show_every_pair_twice_and_a_tie_once() -> None:
    found = shown(["x", "same"], ["y", "same"], both_orders=True)
    seen = [(each.first_name, each.second_name, each.is_tie) for each in found]
    assert sorted(seen) == [("S_0", "S_1", False), ("S_1", "S_0", False), ("S_1", "S_0", True)]


@pytest.mark.parametrize(
    ("one", "other", "tie"),
    [
        ("It was 1936.", " It was\n1936. ", True),
        ("1936", "1937", False),
        (None, ":", True),
        (None, "x", False),
    ],
)
def test_answers_that_a_judge_could_not_tell_apart_tie(one: str | None, other: str | None, tie: bool) -> None:
    (found,) = shown([one], [other])
    assert found.is_tie is tie


def test_a_failed_rollout_is_not_an_answer() -> None:
    newest = contestant("S_1", ["x", "y", "z"], failed=[1]).rollouts
    earlier = contestant("S_0", ["a", "b"], failed=[0]).rollouts
    assert balanced_pairs("S_1", {"S_0": earlier, "S_1": newest}, key=(0,)) == []


def test_the_plan_follows_from_the_key() -> None:
    assert shown("abcdefgh", "ijklmnop", seed=1) == shown("abcdefgh", "ijklmnop", seed=1)
    assert shown("abcdefgh", "ijklmnop", seed=1) != shown("abcdefgh", "ijklmnop", seed=2)
