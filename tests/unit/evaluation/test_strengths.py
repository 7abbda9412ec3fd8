"""Ratings with intervals: what a known judge must give, and that the order in the prompt changes nothing."""

import random
from collections.abc import Sequence

import pytest

from scope_selfplay.base.values import Outcome, Verdict
from scope_selfplay.evaluation.pairs import PairVerdict
from scope_selfplay.evaluation.ratings import Strengths
from tests.unit.evaluation.contestants import judged_pair

NAMES = ("S_0", "S_1", "S_2")
TRUTH = {"S_0": 0.0, "S_1": 0.3, "S_2": 0.5}


def meetings(
    rng: random.Random, tasks: int, *, offset: float = 0.0, noise: float = 0.0, spread: float = 0.0
) -> list[PairVerdict]:
    """Every pair on every task, in alternating order, by a judge who pays `offset` for the first place."""
    found = []
    for task in range(tasks):
        own = {name: truth + spread * rng.gauss(0, 1) for name, truth in TRUTH.items()}
        for number, (one, other) in enumerate([("S_1", "S_0"), ("S_2", "S_0"), ("S_2", "S_1")]):
            first, second = (one, other) if (task + number) % 2 else (other, one)
            margin = own[first] - own[second] + offset + noise * rng.gauss(0, 1)
            found.append(judged_pair(f"t{task}", first, second, Outcome(margin, 0.0)))
    return found


def fitted(judged: Sequence[PairVerdict], resamples: int = 200, seed: int = 0) -> Strengths:
    return Strengths(judged, seed=seed, resamples=resamples)


def test_an_exact_judge_is_recovered_whatever_bonus_the_first_answer_gets() -> None:
    found = fitted(meetings(random.Random(0), 10, offset=0.7))
    for one in NAMES:
        for other in NAMES:
            gap = found.difference(one, other)
            assert gap is not None
            assert gap.value == pytest.approx(TRUTH[one] - TRUTH[other], abs=1e-5)
            assert (gap.low, gap.high) == (
                pytest.approx(gap.value, abs=1e-4),
                pytest.approx(gap.value, abs=1e-4),
            )
    assert found.offset == pytest.approx(0.7, abs=1e-4)


@pytest.mark.integration
def test_an_interval_covers_the_truth_as_often_as_it_claims() -> None:
    covered = 0
    for trial in range(200):
        judged = meetings(random.Random(trial), 60, offset=0.3, noise=0.5, spread=0.5)
        gap = fitted(judged, resamples=300, seed=trial).difference("S_2", "S_0")
        assert gap is not None
        covered += gap.low <= 0.5 <= gap.high
    assert 180 <= covered <= 199


def test_presentations_of_one_task_are_not_independent_evidence() -> None:
    rng = random.Random(1)
    once = meetings(rng, 40, noise=0.5, spread=0.5)
    thrice = [each for each in once for _ in range(3)]
    one, three = (fitted(each, 1000).difference("S_2", "S_0") for each in (once, thrice))
    assert one is not None and three is not None
    assert three.high - three.low == pytest.approx(one.high - one.low, rel=1e-3)
    assert three.items == one.items == 40


def test_ties_of_equal_answers_pull_together_and_reveal_nothing_about_the_order() -> None:
    asked = [
        judged_pair("t0", "S_1", "S_0", Outcome(2.0, 0.0)),
        judged_pair("t1", "S_0", "S_1", Outcome(1.0, 1.0)),
    ]
    tie = judged_pair("t2", "S_1", "S_0", Outcome(0.5, 0.5), verdict=Verdict(value=True, attempts=0))
    found = fitted([*asked, tie])
    gap = found.difference("S_1", "S_0")
    # By hand: d + o = 2, -d + o = 0, d = 0 in least squares.
    assert gap is not None and gap.value == pytest.approx(2 / 3, abs=1e-4)
    assert found.offset == pytest.approx(1.0, abs=1e-4)


def test_what_nothing_connects_has_no_difference() -> None:
    found = fitted(
        [judged_pair("t0", "S_1", "S_0", Outcome(1, 0)), judged_pair("t0", "S_3", "S_2", Outcome(1, 0))]
    )
    assert found.difference("S_1", "S_0") is not None
    assert found.difference("S_2", "S_0") is None and found.difference("S_9", "S_0") is None
    assert fitted([]).difference("S_0", "S_0") is None and fitted([]).offset == 0.0


def test_one_task_has_no_interval() -> None:
    gap = fitted(meetings(random.Random(0), 1)).difference("S_2", "S_0")
    assert gap is not None and (gap.low, gap.high, gap.items) == (None, None, 1)


def test_more_looks_make_a_wider_interval_and_equal_seeds_an_equal_one() -> None:
    judged = meetings(random.Random(0), 50, noise=1.0)
    one, three = (fitted(judged).difference("S_2", "S_0", looks=looks) for looks in (1, 3))
    assert one is not None and three is not None and three.value == one.value
    assert three.ends[0] < one.ends[0] and one.ends[1] < three.ends[1]
    assert one == fitted(judged).difference("S_2", "S_0") != fitted(judged, seed=1).difference("S_2", "S_0")
