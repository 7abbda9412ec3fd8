import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.ranking.topologies import group_tournament
from tests.unit.ranking.judges import Unshuffled, best_of, drive, qualities

PAIRS = {"group_size": 2, "winners": 1, "final": 1, "repeats": 1}


@settings(max_examples=40)
@given(
    n=st.integers(2, 40),
    group_size=st.integers(2, 7),
    winners=st.integers(1, 6),
    slack=st.integers(0, 3),
    repeats=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_wave_splits_the_field_evenly(
    n: int, group_size: int, winners: int, slack: int, repeats: int, seed: int
) -> None:
    winners = min(winners, group_size - 1)
    topology = group_tournament(
        n,
        random.Random(seed),
        group_size=group_size,
        winners=winners,
        final=winners + slack,
        repeats=repeats,
    )
    driven = drive(topology, best_of(qualities(n, seed), winners))
    for wave in driven.waves:
        sizes = {len(group) for group in wave}
        assert winners < min(sizes) and max(sizes) <= min(sizes) + 1 <= group_size + 1
        assert max(sizes) <= group_size
    points = [strength for strength in driven.strengths if strength is not None]
    # Who had a bye is scored for it as for the other rounds.
    assert sum(points) >= winners * driven.calls


@pytest.mark.parametrize("n", [3, 5, 9, 17, 31, 33])
def test_nobody_gets_a_second_bye_while_others_had_none(n: int) -> None:
    for seed in range(20):
        quality = qualities(n, seed)
        driven = drive(group_tournament(n, random.Random(seed), **PAIRS), best_of(quality, 1))
        alive, byes = set(range(n)), Counter[int]()
        for wave in driven.waves:
            playing = {entrant for group in wave for entrant in group}
            resting = alive - playing
            assert len(resting) == len(alive) % 2
            assert all(byes[entrant] == min(byes[other] for other in alive) for entrant in resting)
            byes.update(resting)
            alive = resting | {max(group, key=quality.__getitem__) for group in wave}


def test_seven_in_groups_of_four_make_a_four_and_a_three() -> None:
    topology = group_tournament(7, Unshuffled(), group_size=4, winners=2, final=2, repeats=1)
    assert drive(topology, best_of(range(7), 2)).waves[0] == [[0, 1, 2, 3], [4, 5, 6]]


def test_the_repeats_run_side_by_side() -> None:
    topology = group_tournament(8, random.Random(0), group_size=2, winners=1, final=1, repeats=4)
    driven = drive(topology, best_of(range(8), 1))
    assert [len(wave) for wave in driven.waves] == [16, 8, 4]
    assert len({str(driven.waves[0][start : start + 4]) for start in range(0, 16, 4)}) == 4


def test_in_a_group_without_verdict_nobody_scores_and_the_first_go_on() -> None:
    def judge(group: list[int]) -> list[int] | None:
        return None if group == [0, 1] else [max(group)]

    driven = drive(group_tournament(4, Unshuffled(), **PAIRS), judge)
    assert driven.waves == [[[0, 1], [2, 3]], [[0, 3]]]
    assert driven.strengths == [0.0, None, 0.0, 2.0]


def test_a_position_biased_judge_does_not_always_reward_the_same_numbers() -> None:
    winners = set()
    for seed in range(40):
        topology = group_tournament(8, random.Random(seed), **PAIRS)
        strengths = drive(topology, lambda group: group[:1]).strengths
        winners.add(strengths.index(3.0))
    assert winners == set(range(8))


def test_a_bye_neither_earns_nor_costs() -> None:
    driven = drive(group_tournament(3, Unshuffled(), **PAIRS), lambda group: [max(group)])
    # 1 beats 0 while 2 rests; then 2 beats 1.
    assert driven.strengths == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"winners": 2},
        {"winners": 0},
        {"group_size": 4, "winners": 2},
        {"repeats": 0},
    ],
)
def test_a_tournament_that_could_not_end_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a group tournament needs"):
        next(group_tournament(8, random.Random(0), **{**PAIRS, **wrong}))


@pytest.mark.parametrize("verdict", [[], [7], [0, 1], [0, 0]])
def test_winners_that_are_not_of_the_group_are_refused(verdict: list[int]) -> None:
    with pytest.raises(ValueError, match="were to be chosen"):
        drive(group_tournament(4, Unshuffled(), **PAIRS), lambda _: verdict)
