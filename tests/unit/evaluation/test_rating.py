"""One `ratings.json`, from records alone: who is shown with whom, strengths with intervals, scores and the decision, by
rules that are a table.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.intervals import Estimate, estimate_mean
from scope_selfplay.base.values import Comparison, Grade, Outcome, Verdict
from scope_selfplay.config.run import CompareConfig
from scope_selfplay.evaluation.pairs import PairVerdict, balanced_pairs, compare_pair
from scope_selfplay.evaluation.ratings import (
    Gain,
    GradedAnswers,
    Strengths,
    breakdown,
    decide_promotion,
    rate,
)
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply, Style
from scope_selfplay.store.ratings import Decision, Ratings
from tests.unit.evaluation.contestants import UNREADABLE, candidate, contestant, judged_pair

answers = st.lists(st.sampled_from(["a", "b", None]), max_size=30)


@given(answers, answers, answers, st.integers(0, 5))
def test_every_pair_is_shown_first_as_often_as_second(
    newest: list[str | None], one: list[str | None], other: list[str | None], seed: int
) -> None:
    given = {"S_0": one, "S_1": other, "S_2": newest}
    found = {name: contestant(name, said).rollouts for name, said in given.items()}
    met = balanced_pairs("S_2", found, key=(seed,))
    assert met == balanced_pairs("S_2", found, key=(seed,))
    assert all("S_2" in (each.first_name, each.second_name) for each in met)
    for old in ("S_0", "S_1"):
        asked = [each for each in met if old in (each.first_name, each.second_name) and not each.is_tie]
        first = sum(each.first_name == "S_2" for each in asked)
        assert abs(2 * first - len(asked)) <= 1
        assert len({each.item_id for each in asked}) == len(asked) <= len(set(found["S_2"]) & set(found[old]))


def test_answers_that_a_judge_could_not_tell_apart_tie_and_a_failed_rollout_is_no_answer() -> None:
    pairs = [("It was 1936.", " It was\n1936. "), ("1936", "1937"), (None, ":"), (None, "x")]
    for texts, is_tie in zip(pairs, [True, False, True, False], strict=True):
        names = zip(("S_0", "S_1"), texts, strict=True)
        found = {name: contestant(name, [text]).rollouts for name, text in names}
        assert [each.is_tie for each in balanced_pairs("S_1", found, key=(0,))] == [is_tie]
    newest = contestant("S_1", ["x", "y", "z"], failed=[1]).rollouts
    earlier = contestant("S_0", ["a", "b"], failed=[0]).rollouts
    assert balanced_pairs("S_1", {"S_0": earlier, "S_1": newest}, key=(0,)) == []


def fitted(judged: Sequence[PairVerdict]) -> Strengths:
    return Strengths(judged, seed=0, resamples=1000)


def gap_of(judged: Sequence[PairVerdict]) -> Estimate:
    """How far S_1 is ahead of S_0."""
    found = fitted(judged).difference("S_1", "S_0")
    assert found is not None
    return found


def test_presentations_of_one_task_are_not_independent_evidence() -> None:
    rng = random.Random(1)
    orders = [("S_1", "S_0"), ("S_0", "S_1")] * 20
    once = [judged_pair(f"t{row}", *names, Outcome(rng.gauss(0, 1), 0.0)) for row, names in enumerate(orders)]
    one, three, lone = (gap_of(judged) for judged in (once, [each for each in once for _ in "123"], once[:1]))
    assert three.ends[1] - three.ends[0] == pytest.approx(one.ends[1] - one.ends[0], rel=1e-3)
    assert three.items == one.items == 40 and (lone.low, lone.high, lone.items) == (None, None, 1)


def test_ties_of_equal_answers_pull_together_and_reveal_nothing_about_the_order() -> None:
    asked = [
        judged_pair("t0", "S_1", "S_0", Outcome(2.0, 0.0)),
        judged_pair("t1", "S_0", "S_1", Outcome(1.0, 1.0)),
    ]
    tie = judged_pair("t2", "S_1", "S_0", Outcome(0.5, 0.5), verdict=Verdict(value=True, attempts=0))
    # By hand: d + o = 2, -d + o = 0, d = 0 in least squares.
    assert gap_of([*asked, tie]).value == pytest.approx(2 / 3, abs=1e-4)
    assert fitted([*asked, tie]).offset == pytest.approx(1.0, abs=1e-4)


def grade(number: int, *values: bool | None) -> Grade:
    known = [value for value in values if value is not None]
    verdicts = tuple(UNREADABLE if value is None else Verdict(value=value) for value in values)
    return Grade(rollout_id=f"r{number}", verdicts=verdicts, score=sum(known) / len(known) if known else None)


def test_groups_come_in_order_and_missing_verdicts_are_never_zeros_but_graded_again() -> None:
    texts = ["Report the river of Aldmoor's rival.", *["Report the river of Aldmoor Mill."] * 3]
    grades = [grade(0, True, None), grade(1, True, False), grade(2, None, None), grade(3)]
    assert [each.is_whole for each in grades] == [False, True, False, False]
    found = breakdown(
        [candidate(number, text, ("asked", "hidden")) for number, text in enumerate(texts)],
        {f"t{number}": each for number, each in enumerate(grades)},
        partial(estimate_mean, seed=0, resamples=100),
    )
    assert [(name, each.value, each.items) for name, each in found.items()] == [
        ("all", 0.75, 2),
        ("asked criteria", 1.0, 2),
        ("hidden criteria", 0.0, 1),
        ("0 links", 0.5, 1),
        ("1 link", 1.0, 1),
    ]


TASKS = 30
CANDIDATES = [candidate(number) for number in range(TASKS)]
GOOD, POOR = [1.0] * TASKS, [0.0] * (TASKS - 2) + [1.0] * 2


class Reader:
    """Scores an answer by its number of words, with a bonus for the first place."""

    identity = "reader"

    def __init__(self, bonus: float = 0.0) -> None:
        self._bonus = bonus
        self.compared = 0

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        assert isinstance(question, PairQuestion)
        self.compared += 1
        words = [len((each.answer or "").split()) for each in (question.first, question.second)]
        return Reply(Outcome(words[0] + self._bonus, words[1]), Verdict(value=True))


def solver(number: int, scores: Sequence[float | None] = (), *, words: int = 1) -> GradedAnswers:
    answers = [" ".join(["word"] * words) for _ in range(TASKS)]
    return contestant(f"S_{number}", answers, scores=scores)


async def played(judge: Reader, contestants: Sequence[GradedAnswers]) -> list[Comparison]:
    tasks = {each.task.id: each.task for each in CANDIDATES if each.task}
    found = []
    for row in range(len(contestants)):
        answers = {f"S_{number}": each.rollouts for number, each in enumerate(contestants[: row + 1])}
        for pair in balanced_pairs(f"S_{row}", answers, key=(row,)):
            question = PairQuestion(tasks[pair.item_id], pair.first, pair.second, style=Style.SCORES)
            found.append(await compare_pair(judge, question))
    return found


def rated(
    contestants: Sequence[GradedAnswers],
    comparisons: Sequence[Comparison],
    starts: Sequence[str] = ("S_0",),
    **settings: object,
) -> Ratings:
    return rate(
        CANDIDATES[: len(contestants[0].grades)],
        {f"S_{number}": each for number, each in enumerate(contestants)},
        comparisons,
        starts=starts,
        settings=CompareConfig.model_validate(settings),
        seed=0,
    )


async def test_ratings_are_distances_from_the_first_checkpoint_without_the_judges_bias() -> None:
    contestants = [solver(0), solver(1, words=2), solver(2, words=4)]
    found = rated(contestants, await played(Reader(bonus=0.5), contestants), ["S_0", "S_1"])
    assert list(found.ratings) == ["S_0", "S_1", "S_2"]
    assert found.ratings == pytest.approx({"S_0": 0.0, "S_1": 1.0, "S_2": 3.0}, abs=1e-4)
    # Elo counts wins alone: every longer answer won.
    assert 0 == found.elo["S_0"] < found.elo["S_1"] < found.elo["S_2"]
    assert set(found.elo_intervals) == {"S_1", "S_2"}
    assert found.position_offset == pytest.approx(0.5, abs=1e-4)
    assert found.rating_gain is not None and found.rating_gain.value == pytest.approx(2.0, abs=1e-4)
    assert found.intervals["S_2"] == pytest.approx((3.0, 3.0), abs=1e-4)
    met = [(pair.older, pair.newer) for pair in found.edges]
    assert met == [("S_0", "S_1"), ("S_0", "S_2"), ("S_1", "S_2")]
    assert Ratings.model_validate_json(found.model_dump_json()) == found
    keys = {"decision", "reason", "promoted", "ratings", "intervals", "edges"}
    assert keys <= set(json.loads(found.model_dump_json()))


async def test_edges_count_for_the_newer_checkpoint_and_balance_the_order() -> None:
    answers = ["a b"] * 10 + ["a"] * 10 + ["same"] * 10
    contestants = [
        contestant("S_0", ["a b c"] * 10 + [None] * 10 + ["same"] * 10),
        contestant("S_1", answers),
    ]
    judge = Reader()
    comparisons = await played(judge, contestants)
    failed = Comparison(first_id="S_0-0", second_id="S_1-0", outcome=None, verdict=UNREADABLE)
    (edge,) = rated(contestants, [*comparisons, failed]).edges
    assert judge.compared == 20
    assert (edge.older, edge.newer) == ("S_0", "S_1")
    assert (edge.wins, edge.losses, edge.ties, edge.equal, edge.failed) == (10, 10, 10, 10, 1)
    assert edge.newer_first == 10 and edge.mean_margin == pytest.approx(0.0)


@pytest.mark.parametrize(("evidence", "decision"), [("scores", Decision.KEEP), ("ratings", Decision.PROMOTE)])
async def test_the_evidence_decides(evidence: str, decision: Decision) -> None:
    # More words, lower scores.
    contestants = [solver(0, GOOD), solver(1, POOR, words=2)]
    comparisons = await played(Reader(), contestants)
    found = rated(contestants, comparisons, promotion="better", evidence=evidence)
    assert found.decision is decision and found.promoted is (decision is Decision.PROMOTE)


async def test_a_solver_is_measured_against_what_it_was_trained_from() -> None:
    contestants = [solver(0, GOOD, words=3), solver(1, POOR), solver(2, GOOD, words=2)]
    found = rated(contestants, await played(Reader(), contestants), ["S_0", "S_0"], promotion="not_worse")
    assert not found.promoted and "S_2 is worse than S_0" in found.reason
    assert found.gain is not None and found.gain.value == 0.0
    assert rated(contestants, [], ["S_0", "S_1"]).gain != found.gain
    first = rated([solver(0, POOR)], [], [], promotion="better", stop="worse")
    assert (first.promoted, first.gain, first.rating_gain, first.ratings) == (True, None, None, {})


def between(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, items=100)


BETTER, WORSE = between(0.02, 0.10), between(-0.10, -0.02)
OPEN, VAGUE = between(-0.05, 0.05), between(-0.15, 0.15)
ONE_TASK = Estimate(value=1.0, low=None, high=None, items=1)
PROMOTE, KEEP, STOP = Decision


def gains(known: Mapping[tuple[str, str], Estimate]) -> Gain:
    return lambda new, old, looks=1: known.get((new, old))


@pytest.mark.parametrize(
    ("settings", "gain", "decision", "reason"),
    [
        ({"promotion": "always"}, WORSE, PROMOTE, "always"),
        ({"promotion": "always"}, None, PROMOTE, "always"),
        # The whole interval must lie above minus the tolerance of 0.1: what is not shown is not so.
        ({"promotion": "not_worse"}, WORSE, KEEP, "not_worse, by less than 0.1 (compare.tolerance)"),
        ({"promotion": "not_worse"}, OPEN, PROMOTE, "not_worse"),
        ({"promotion": "not_worse"}, VAGUE, KEEP, "not_worse"),
        ({"promotion": "not_worse"}, None, KEEP, "not_worse"),
        # A Solver that is worse for sure may still be worse by less than is tolerated.
        ({"promotion": "not_worse", "tolerance": 0.11}, WORSE, PROMOTE, "by less than 0.11"),
        ({"promotion": "not_worse", "tolerance": 0.05}, WORSE, KEEP, "by less than 0.05"),
        ({"promotion": "better"}, OPEN, KEEP, "better"),
        ({"promotion": "better"}, BETTER, PROMOTE, "better"),
        ({"promotion": "better", "stop": 1}, None, KEEP, "nothing compares S_1 with S_0"),
        ({"stop": "worse"}, WORSE, STOP, "S_1 is worse than S_0: -0.060 [-0.100, -0.020] over 100 tasks"),
        ({"stop": "worse"}, OPEN, PROMOTE, "S_1"),
        # One task shows nothing.
        *(
            (
                {"promotion": rule, "stop": "worse"},
                ONE_TASK,
                KEEP,
                "not told apart from S_0: +1.000 over 1 tasks",
            )
            for rule in ("not_worse", "better")
        ),
    ],
)
def test_promotion_needs_the_evidence_that_its_setting_names(
    settings: dict[str, Any], gain: Estimate | None, decision: Decision, reason: str
) -> None:
    known = {("S_1", "S_0"): gain} if gain else {}
    found = decide_promotion(CompareConfig.model_validate(settings), ["S_0"], gains(known))
    assert (found.decision, found.promoted) == (decision, decision is PROMOTE)
    assert "S_1" in found.reason and "S_0" in found.reason and reason in found.reason


def test_patience_asks_for_intervals_of_as_many_looks() -> None:
    asked: list[int] = []

    def gain(new: str, old: str, *, looks: int = 1) -> Estimate | None:
        asked.append(looks)
        return OPEN

    decide_promotion(CompareConfig(stop=3), ["S_0", "S_1", "S_2"], gain)
    assert asked == [1, 3, 3, 3]


@pytest.mark.parametrize(
    ("starts", "against_the_first", "decision"),
    [
        (["S_0"], {}, PROMOTE),
        (["S_0", "S_1"], {"S_1": OPEN, "S_2": OPEN}, STOP),
        (["S_0", "S_1"], {"S_1": WORSE, "S_2": OPEN}, STOP),
        # Two gains, each too small to show, together show.
        (["S_0", "S_1"], {"S_1": OPEN, "S_2": BETTER}, PROMOTE),
        (["S_0", "S_1"], {"S_1": BETTER, "S_2": OPEN}, PROMOTE),
        (["S_0", "S_1", "S_2"], {"S_2": OPEN, "S_3": OPEN}, STOP),
        (["S_0", "S_0"], {"S_1": OPEN, "S_2": OPEN}, STOP),
    ],
)
def test_patience_ends_a_run_that_no_iteration_helps(
    starts: list[str], against_the_first: dict[str, Estimate], decision: Decision
) -> None:
    known = {(f"S_{number + 1}", start): OPEN for number, start in enumerate(starts)}
    known |= {(name, starts[-2]): gain for name, gain in against_the_first.items()}
    found = decide_promotion(CompareConfig(stop=2), starts, gains(known))
    assert found.decision is decision
    if decision is STOP:
        assert found.promoted and f"none of the last 2 is better than {starts[-2]}" in found.reason
