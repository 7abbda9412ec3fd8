import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import balanced, fit_margins
from scope_selfplay.ranking.driver import play, play_groups
from scope_selfplay.ranking.matches import Match, Topology
from scope_selfplay.ranking.topologies import group_tournament, round_robin, single_elimination, swiss
from tests.unit.ranking.judges import Unshuffled, best_of, drive, lower_number, perfect, qualities


class Judge:
    """Counts its calls; waits until everybody has been asked that is going to be."""

    def __init__(self, decide) -> None:
        self.asked: list = []
        self.together: list[int] = []
        self._decide = decide
        self._waiting = 0

    async def __call__(self, question):
        self.asked.append(question)
        self._waiting += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.together.append(self._waiting)
        await asyncio.sleep(0)
        self._waiting -= 1
        return self._decide(question)


def waves_of(*waves: list[Match]):
    """A topology that only listens; `heard` gets one list of outcomes per wave."""
    heard: list[list[Outcome | None]] = []

    def topology() -> Topology:
        for wave in waves:
            heard.append((yield list(wave)))
        return [0.0]

    return topology(), heard


async def test_a_play_gives_what_the_topology_gives() -> None:
    judge = perfect(qualities(8, 0))
    counted = Judge(judge)
    played = await play(swiss(8, random.Random(1)), counted, identity=range(8))
    driven = drive(swiss(8, random.Random(1)), judge)
    assert played.strengths == driven.strengths
    assert (len(counted.asked), counted.together) == (12, [4] * 12)
    assert list(played.graph.matches) == driven.asked
    assert list(played.graph.outcomes) == [judge(match) for match in driven.asked]


async def test_all_calls_of_a_wave_run_at_once() -> None:
    judge = Judge(lower_number)
    await play(single_elimination(8), judge, both_orders=True, identity=range(8))
    # The anchor meets one of its seven opponents again in the bracket: that pair is not judged twice.
    assert judge.together[:14] == [14] * 14
    assert set(judge.together[14:20]) == {6}


async def test_a_slow_verdict_changes_nothing() -> None:
    quality = qualities(8, 3)

    async def slow_for_low_numbers(match: Match) -> Outcome:
        for _ in range(10 - min(match)):
            await asyncio.sleep(0)
        return perfect(quality)(match)

    slow = await play(balanced(8, 28, random.Random(2)), slow_for_low_numbers, identity=range(8))
    assert slow == await play(balanced(8, 28, random.Random(2)), Judge(perfect(quality)), identity=range(8))


async def test_both_orders_are_averaged() -> None:
    scores = {Match(0, 1): Outcome(7.0, 6.5), Match(1, 0): Outcome(7.5, 6.0)}
    topology, heard = waves_of([Match(0, 1)])
    judge = Judge(scores.__getitem__)
    played = await play(topology, judge, both_orders=True, identity=range(8))
    assert heard == [[Outcome(6.5, 7.0)]]
    assert len(judge.asked) == 2
    assert dict(zip(*played.graph, strict=True)) == scores


@pytest.mark.parametrize("missing", [Match(0, 1), Match(1, 0)])
async def test_one_order_missing_is_no_verdict(missing: Match) -> None:
    topology, heard = waves_of([Match(0, 1)])
    judge = Judge(lambda match: None if match == missing else Outcome(1.0, 0.0))
    await play(topology, judge, both_orders=True, identity=range(8))
    assert heard == [[None]]
    assert len(judge.asked) == 2


async def test_duplicates_are_judged_once() -> None:
    topology, heard = waves_of([Match(0, 1), Match(0, 1), Match(1, 0)], [Match(0, 1)], [Match(1, 0)])
    judge = Judge(lower_number)
    await play(topology, judge, identity=range(8))
    assert Counter(judge.asked) == {Match(0, 1): 1, Match(1, 0): 1}
    assert judge.together == [2, 2]
    assert heard[1] == [lower_number(Match(0, 1))]


async def test_a_failed_call_is_not_asked_again() -> None:
    topology, heard = waves_of([Match(0, 1)], [Match(0, 1)])
    judge = Judge(lambda _: None)
    await play(topology, judge, identity=range(8))
    assert heard == [[None], [None]]
    assert len(judge.asked) == 1


async def test_identical_answers_tie_without_a_call_at_the_level_of_the_scores() -> None:
    quality = {0: 8.0, 1: 8.0, 2: 5.0, 3: 3.0, 4: 3.0}
    topology, heard = waves_of([Match(0, 1), Match(1, 2), Match(3, 4)], [Match(4, 3), Match(3, 2)])
    judge = Judge(lambda match: Outcome(quality[match.first], quality[match.second]))
    await play(topology, judge, identity=["a", "a", "b", "c", "c"])
    assert judge.asked == [Match(1, 2), Match(3, 2)]
    assert heard[0][0] == Outcome(8.0, 8.0)
    # Nobody has scored "c" yet: the mean of all scores, then its own.
    assert heard[0][2] == Outcome(6.5, 6.5)
    assert heard[1][0] == Outcome(3.0, 3.0)


async def test_those_who_say_the_same_share_their_verdicts() -> None:
    topology, heard = waves_of([Match(0, 2), Match(1, 2), Match(2, 1)])
    judge = Judge(lambda match: Outcome(float(match.first), float(match.second)))
    await play(topology, judge, identity=["same", "same", "other"])
    assert judge.asked == [Match(0, 2), Match(2, 1)]
    assert heard == [[Outcome(0.0, 2.0), Outcome(0.0, 2.0), Outcome(2.0, 1.0)]]


async def test_the_tie_of_equals_is_no_trace_of_position() -> None:
    quality = [1.0, 1.0, -1.0, 0.0]

    def judge(match: Match) -> Outcome:
        return Outcome(quality[match.first] + 0.8, quality[match.second])

    played = await play(round_robin(4), Judge(judge), identity=["a", "a", "b", "c"])
    strengths = fit_margins(4, *played.graph, offset=0.8, ridge=1e-6)
    assert strengths[0] == pytest.approx(strengths[1], abs=1e-4)
    assert strengths[0] - strengths[2] == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
async def test_a_score_that_is_no_number_is_a_failure(score: float) -> None:
    played = await play(
        round_robin(3),
        Judge(lambda match: Outcome(score, 0.0) if 2 in match else Outcome(1, 0)),
        identity=range(8),
    )
    assert played.strengths[2] is None
    assert list(played.graph.outcomes).count(None) == 2


async def test_an_error_of_the_judge_ends_the_play_and_its_calls() -> None:
    cancelled = []

    async def compare(match: Match) -> Outcome:
        if match == Match(0, 1):
            raise InferenceError("the judge is gone")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(match)
            raise
        raise AssertionError("nobody waits that long")

    topology, _ = waves_of([Match(2, 3), Match(0, 1), Match(4, 5)])
    with pytest.raises(InferenceError, match="gone"):
        await play(topology, compare, identity=range(8))
    assert cancelled == [Match(2, 3), Match(4, 5)]


async def test_groups_are_played_to_their_strengths() -> None:
    topology = group_tournament(8, Unshuffled(), group_size=4, winners=2, final=2, repeats=2)
    judge = Judge(best_of(range(8, 0, -1), 2))
    strengths = await play_groups(topology, judge, identity=range(8))
    # Without shuffling the second repeat shows the same groups: they are not judged again.
    assert strengths == [4.0, 4.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0]
    assert judge.together == [2, 2, 1]


async def test_a_failed_group_scores_nothing() -> None:
    topology = group_tournament(4, Unshuffled(), group_size=2, winners=1, final=1, repeats=1)
    judge = Judge(lambda group: None if 3 in group else [min(group)])
    assert await play_groups(topology, judge, identity=range(8)) == [2.0, 0.0, 0.0, None]
    assert len(judge.asked) == 3


async def test_groups_that_say_the_same_share_a_verdict() -> None:
    topology = group_tournament(4, Unshuffled(), group_size=2, winners=1, final=2, repeats=1)
    judge = Judge(lambda group: [group[1]])
    strengths = await play_groups(topology, judge, identity=["a", "b", "a", "b"])
    assert judge.asked == [[0, 1]]
    assert strengths == [0.0, 1.0, 0.0, 1.0]


async def test_a_group_that_says_one_thing_needs_no_call() -> None:
    topology = group_tournament(4, Unshuffled(), group_size=4, winners=2, final=2, repeats=1)
    judge = Judge(best_of(range(4), 2))
    strengths = await play_groups(topology, judge, identity=["a"] * 4)
    assert (strengths, judge.asked) == ([None] * 4, [])


async def test_winners_from_outside_the_group_are_refused() -> None:
    topology = group_tournament(4, Unshuffled(), group_size=2, winners=1, final=2, repeats=1)
    with pytest.raises(ValueError, match="not all in the group"):
        await play_groups(topology, Judge(lambda _: [9]), identity=range(8))


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


def test_a_tournament_that_could_not_end_is_refused() -> None:
    for wrong in ({"winners": 2}, {"winners": 0}, {"group_size": 4, "winners": 2}, {"repeats": 0}):
        with pytest.raises(ValueError, match="a group tournament needs"):
            next(group_tournament(8, random.Random(0), **{**PAIRS, **wrong}))


@pytest.mark.parametrize("verdict", [[], [7], [0, 1], [0, 0]])
def test_winners_that_are_not_of_the_group_are_refused(verdict: list[int]) -> None:
    with pytest.raises(ValueError, match="were to be chosen"):
        drive(group_tournament(4, Unshuffled(), **PAIRS), lambda _: verdict)
