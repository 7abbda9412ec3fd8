"""One `ratings.json`: scores, ratings, graph and decision from records alone."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from scope_selfplay.base.values import Comparison, Outcome, Verdict
from scope_selfplay.config.run import CompareConfig
from scope_selfplay.evaluation.folder import TaskChange
from scope_selfplay.evaluation.pairs import balanced_pairs, compare_pair
from scope_selfplay.evaluation.ratings import GradedAnswers, rate
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply, Style
from scope_selfplay.report.record import diff_checkpoints
from scope_selfplay.store.ratings import Decision, Ratings
from tests.unit.evaluation.contestants import candidate, comparison, contestant

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
            asked: object = judge
            found.append(await compare_pair(asked, pair, tasks[pair.item_id], None, Style.SCORES))  # type: ignore[arg-type]
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
    assert found.ratings == pytest.approx({"S_0": 0.0, "S_1": 1.0, "S_2": 3.0}, abs=1e-4)
    # Elo counts wins alone: every longer answer won.
    assert 0 == found.elo["S_0"] < found.elo["S_1"] < found.elo["S_2"]
    assert set(found.elo_intervals) == {"S_1", "S_2"}
    assert found.position_offset == pytest.approx(0.5, abs=1e-4)
    assert found.rating_gain is not None and found.rating_gain.value == pytest.approx(2.0, abs=1e-4)
    assert found.intervals["S_2"] == pytest.approx((3.0, 3.0), abs=1e-4)
    assert list(found.ratings) == ["S_0", "S_1", "S_2"]
    met = [(pair.older, pair.newer) for pair in found.edges]
    assert met == [("S_0", "S_1"), ("S_0", "S_2"), ("S_1", "S_2")]
    assert Ratings.model_validate_json(found.model_dump_json()) == found
    assert {"decision", "reason", "promoted", "ratings", "intervals", "edges"} <= set(
        json.loads(found.model_dump_json())
    )


async def test_edges_count_for_the_newer_checkpoint_and_balance_the_order() -> None:
    answers = ["a b"] * 10 + ["a"] * 10 + ["same"] * 10
    contestants = [
        contestant("S_0", ["a b c"] * 10 + [None] * 10 + ["same"] * 10),
        contestant("S_1", answers),
    ]
    judge = Reader()
    comparisons = await played(judge, contestants)
    (edge,) = rated(contestants, [*comparisons, comparison("S_0-0", "S_1-0", None)]).edges
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


def test_the_first_checkpoint_has_nothing_to_gain_on() -> None:
    found = rated([solver(0, POOR)], [], [], promotion="better", stop="worse")
    assert (found.promoted, found.gain, found.rating_gain, found.ratings) == (True, None, None, {})


def test_a_gain_in_scores_is_paired_and_leaves_missing_scores_out() -> None:
    before = contestant("S_0", ["x"] * 3, scores=[1.0, 0.0, None])
    after = contestant("S_1", ["x"] * 3, scores=[1.0, 1.0, 1.0])
    found = rated([before, after], [])
    assert found.gain is not None and (found.gain.value, found.gain.items) == (0.5, 2)


def test_two_checkpoints_side_by_side_have_the_interval_of_the_ratings() -> None:
    """`scope tasks diff` and `ratings.json` say the same of one gain."""
    before, after = [0.0, 0.5, 1.0, 0.0, 0.25, 1.0], [0.5, 0.5, 1.0, 1.0, 0.0, 1.0]
    told = [contestant(name, ["x"] * 6, scores=scores) for name, scores in (("S_0", before), ("S_1", after))]
    changes = [
        TaskChange(task_id=f"t{row}", text="", before=one, after=two)
        for row, (one, two) in enumerate(zip(before, after, strict=True))
    ]
    gain, diff = rated(told, []).gain, diff_checkpoints("S_0", "S_1", changes)
    assert gain is not None and diff.gain.model_copy(update={"note": gain.note}) == gain
