"""Joining the numbers of processes gives those that one process would have counted."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from scope_selfplay.rewards.measures import Greatest, Mean, Total, joined_values

VALUES = st.lists(st.lists(st.none() | st.floats(-10, 10), max_size=6), min_size=1, max_size=4)


@given(VALUES)
def test_the_mean_of_parts_is_the_mean_of_the_whole(parts: list[list[float | None]]) -> None:
    whole = joined_values([{"length": Mean.of(value for part in parts for value in part)}])["length"]
    joined = joined_values([{"length": Mean.of(part)} for part in parts])["length"]
    assert joined == (whole if whole is None else approx(whole, abs=1e-9))


def test_calls_are_summed_and_waits_are_the_longest() -> None:
    parts = [
        {"judge_calls": Total(10), "judge_missing": Mean(1, 10), "rollout_seconds": Greatest(4.0)},
        {"judge_calls": Total(90), "judge_missing": Mean(19, 90), "rollout_seconds": Greatest(2.5)},
    ]
    assert joined_values(parts) == {"judge_calls": 100.0, "judge_missing": 0.2, "rollout_seconds": 4.0}


def test_a_share_of_nothing_is_what_it_is_said_to_be() -> None:
    assert joined_values([{"judge_missing": Mean(0, 0, over_nothing=0.0), "rubric": Mean.of([None])}]) == {
        "judge_missing": 0.0,
        "rubric": None,
    }


def test_plain_numbers_are_averaged_and_what_one_part_lacks_is_no_zero() -> None:
    assert joined_values([{"format": 0.5, "rubric": None}, {"format": 1.0, "rubric": 0.25}, {}]) == {
        "format": 0.75,
        "rubric": 0.25,
    }
