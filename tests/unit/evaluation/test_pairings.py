"""Who is shown with whom: every pair as often in one order as in the other, and nobody asked for nothing."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.evaluation.pairings import presentations
from tests.unit.evaluation.contestants import contestant

answers = st.lists(st.sampled_from(["a", "b", None]), max_size=30)


@given(answers, answers, answers, st.integers(0, 5))
def test_every_pair_is_shown_first_as_often_as_second(
    newest: list[str | None], one: list[str | None], other: list[str | None], seed: int
) -> None:
    earlier = [contestant("S_0", one), contestant("S_1", other)]
    shown = presentations(contestant("S_2", newest), earlier, key=(seed,))
    for old in earlier:
        asked = [
            each
            for each in shown
            if old.name in (each.first.checkpoint, each.second.checkpoint) and not each.is_tie
        ]
        first = sum(each.first.checkpoint == "S_2" for each in asked)
        assert abs(2 * first - len(asked)) <= 1
        both = set(contestant("S_2", newest).rollouts) & set(old.rollouts)
        assert len({each.task_id for each in asked}) == len(asked) <= len(both)


def test_only_pairs_with_the_newest_are_shown() -> None:
    earlier = [contestant(name, [name, name]) for name in ("S_0", "S_1")]
    shown = presentations(contestant("S_2", ["x", "y"]), earlier, key=(0,))
    pairs = Counter(frozenset((each.first.checkpoint, each.second.checkpoint)) for each in shown)
    assert pairs == {frozenset(("S_0", "S_2")): 2, frozenset(("S_1", "S_2")): 2}
    assert presentations(contestant("S_0", ["x"]), [], key=(0,)) == []


def test_both_orders_show_every_pair_twice_and_a_tie_once() -> None:
    shown = presentations(
        contestant("S_1", ["x", "same"]), [contestant("S_0", ["y", "same"])], key=(0,), both_orders=True
    )
    seen = [(each.first.checkpoint, each.second.checkpoint, each.is_tie) for each in shown]
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
    (shown,) = presentations(contestant("S_1", [one]), [contestant("S_0", [other])], key=(0,))
    assert shown.is_tie is tie


def test_a_failed_rollout_is_not_an_answer() -> None:
    newest, earlier = (
        contestant("S_1", ["x", "y", "z"], failed=[1]),
        contestant("S_0", ["a", "b"], failed=[0]),
    )
    assert presentations(newest, [earlier], key=(0,)) == []


def test_the_plan_follows_from_the_key() -> None:
    newest, earlier = contestant("S_1", list("abcdefgh")), [contestant("S_0", list("ijklmnop"))]
    assert presentations(newest, earlier, key=(1,)) == presentations(newest, earlier, key=(1,))
    assert presentations(newest, earlier, key=(1,)) != presentations(newest, earlier, key=(2,))
