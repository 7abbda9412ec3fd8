import asyncio
from collections import Counter

import pytest

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.driver import play, play_groups
from scope_selfplay.ranking.matches import Match, Topology
from scope_selfplay.ranking.topologies import group_tournament, round_robin
from tests.unit.ranking.judges import Unshuffled, lower_number


class Judge:
    """Counts its calls; waits until everybody has been asked that is going to be, and ends in another order."""

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
        for _ in range(self._waiting - len(self.together) % self._waiting):
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


async def test_both_orders_are_averaged() -> None:
    """Where one is missing there is no verdict."""
    scores: dict[Match, Outcome | None] = {Match(0, 1): Outcome(7.0, 6.5), Match(1, 0): Outcome(7.5, 6.0)}
    for missing, expected in ((None, Outcome(6.5, 7.0)), (Match(0, 1), None), (Match(1, 0), None)):
        topology, heard = waves_of([Match(0, 1)])
        shown = {match: None if match == missing else outcome for match, outcome in scores.items()}
        judge = Judge(shown.__getitem__)
        played = await play(topology, judge, both_orders=True, identity=range(8))
        assert heard == [[expected]] and len(judge.asked) == 2
        assert dict(zip(*played.graph, strict=True)) == shown


async def test_a_pair_is_judged_once_also_where_its_call_failed() -> None:
    topology, heard = waves_of(
        [Match(0, 1), Match(0, 1), Match(1, 0), Match(2, 1)], [Match(0, 1), Match(2, 1)], [Match(1, 0)]
    )
    judge = Judge(lambda match: None if 2 in match else lower_number(match))
    await play(topology, judge, identity=range(8))
    assert Counter(judge.asked) == {Match(0, 1): 1, Match(1, 0): 1, Match(2, 1): 1}
    assert judge.together == [3, 3, 3]
    assert heard[1:] == [[lower_number(Match(0, 1)), None], [lower_number(Match(1, 0))]]


async def test_identical_answers_tie_without_a_call_at_the_level_of_the_scores() -> None:
    quality = {0: 8.0, 1: 8.0, 2: 5.0, 3: 3.0, 4: 3.0}
    waves = [Match(0, 1), Match(1, 2), Match(0, 2), Match(3, 4)], [Match(4, 3), Match(3, 2)]
    topology, heard = waves_of(*waves)
    judge = Judge(lambda match: Outcome(quality[match.first], quality[match.second]))
    played = await play(topology, judge, identity=["a", "a", "b", "c", "c"])
    assert judge.asked == [Match(1, 2), Match(3, 2)]
    # Nobody has scored "c" at first: the mean of all scores, then its own.
    level, shared = Outcome(8.0, 8.0), Outcome(8.0, 5.0)
    assert heard[0] == [level, shared, shared, Outcome(6.5, 6.5)]
    assert heard[1] == [Outcome(3.0, 3.0), Outcome(3.0, 5.0)]
    # A tie stands in both orders, so that it is no trace of position.
    assert dict(zip(*played.graph, strict=True))[Match(1, 0)] == level


async def test_a_score_that_is_no_number_is_a_failure() -> None:
    scores = {2: float("nan"), 3: float("inf")}
    judge = Judge(lambda match: Outcome(scores.get(match.first, 1.0), scores.get(match.second, 0.0)))
    played = await play(round_robin(4), judge, identity=range(8))
    assert [strength is None for strength in played.strengths] == [False, False, True, True]
    assert list(played.graph.outcomes).count(None) == 5


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


async def test_in_a_group_without_verdict_nobody_scores_and_the_first_go_on() -> None:
    topology = group_tournament(4, Unshuffled(), group_size=2, winners=1, final=1, repeats=1)
    judge = Judge(lambda group: None if 3 in group else [min(group)])
    assert await play_groups(topology, judge, identity=range(8)) == [2.0, 0.0, 0.0, None]
    assert judge.asked == [[0, 1], [2, 3], [0, 2]]


async def test_groups_that_say_the_same_share_a_verdict_and_equals_need_none() -> None:
    topology = group_tournament(6, Unshuffled(), group_size=2, winners=1, final=3, repeats=1)
    judge = Judge(lambda group: [group[1]])
    strengths = await play_groups(topology, judge, identity=["a", "b", "a", "b", "c", "c"])
    assert judge.asked == [[0, 1]]
    assert strengths == [0.0, 1.0, 0.0, 1.0, None, None]
