"""Records become a result: numbers that can be counted by hand, and the same bytes in any order."""

from typing import Any

import pytest

from scope_selfplay.base.values import Outcome, RolloutStatus, Turn, Verdict
from scope_selfplay.evaluation.benchmarks import Benchmark, Decoding
from scope_selfplay.evaluation.folder import tables_of
from scope_selfplay.evaluation.metrics import EvaluationResult, evaluation_result
from scope_selfplay.evaluation.pairs import Mark, PairVerdict, agreements, judge_pair, pairs
from scope_selfplay.evaluation.rows import Fields, Item, ItemCriterion
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from scope_selfplay.judge.protocol import Question, Reply
from tests.unit.evaluation.contestants import answering, judged_pair

CRITERIA = (
    ItemCriterion(text="Names it.", dimension="Facts"),
    ItemCriterion(text="Is short.", dimension="Form"),
)
ITEMS = tuple(
    Item(
        id=f"q{row}",
        question=f"{row}?",
        answers=("x",),
        criteria=CRITERIA,
        group="odd" if row % 2 else "even",
    )
    for row in range(4)
)


def loaded(samples: int = 1, scorers: tuple[str, ...] = ("exact_match", "reference", "rubric")) -> Benchmark:
    decoding = Decoding(samples=samples)
    return Benchmark("invented", "Invented", "nowhere", Fields(), scorers, decoding=decoding, items=ITEMS)


def score(
    checkpoint: str,
    row: int,
    value: float | None,
    *,
    sample: int = 0,
    scorer: str = "exact_match",
    **more: object,
) -> AnswerScore:
    given = {"item_id": f"q{row}", "answer_id": f"{checkpoint}-{row}-{sample}", "checkpoint": checkpoint}
    return AnswerScore.model_validate({**given, "sample": sample, "scorer": scorer, "value": value, **more})


def numbers(
    result: EvaluationResult, scorer: str = "exact_match", part: str = ""
) -> dict[tuple[str, str], float]:
    rows = [row for row in result.rows if (row.scorer, row.part) == (scorer, part)]
    return {(row.checkpoint, row.metric): row.estimate.value for row in rows}


def test_samples_of_an_item_become_one_value_of_each_metric() -> None:
    """q0: 2 of 4 right, by vote right; q1: 1 of 4, by vote wrong; q2: all; q3: a fault and 3 wrong ones."""
    right = {0: [1, 1, 0, 0], 1: [1, 0, 0, 0], 2: [1, 1, 1, 1], 3: [None, 0, 0, 0]}
    said = {0: ["a", "a", "b", "c"], 1: ["a", "b", "b", "c"], 2: ["a"] * 4, 3: ["", "a", "b", "c"]}
    scores = [
        score("S", row, value, sample=place, label=said[row][place])
        for row, values in right.items()
        for place, value in enumerate(values)
    ]
    found = numbers(evaluation_result(loaded(4), ["S"], [], scores, seed=0))
    assert found["S", "avg@4"] == pytest.approx((0.5 + 0.25 + 1 + 0) / 4)
    assert found["S", "pass@1"] == pytest.approx((0.5 + 0.25 + 1 + 0) / 4)
    assert found["S", "pass@2"] == pytest.approx((5 / 6 + 1 / 2 + 1 + 0) / 4)
    # q3 has three samples only.
    assert found["S", "pass@4"] == pytest.approx((1 + 1 + 1) / 3)
    assert found["S", "maj@4"] == pytest.approx((1 + 0 + 1 + 0) / 4)


def lines_of(result: EvaluationResult) -> list[str]:
    return [line for table in tables_of(result) for line in table.text()]


def test_a_fault_is_no_zero_and_is_counted() -> None:
    scores = [score("S", row, value) for row, value in enumerate([1.0, None, 0.0, 1.0])]
    result = evaluation_result(loaded(), ["S"], [], scores, seed=0)
    row = result.rows[0]
    assert (row.estimate.value, row.estimate.items, row.missing) == (pytest.approx(2 / 3), 3, 1)
    assert row.estimate.note == "only 3 items"
    assert numbers(result, part="group: even") == {("S", "avg@1"): 0.5}
    assert result.headline("S") == row.estimate
    assert "(only 3 items, 1 missing)" in next(line for line in lines_of(result) if line.startswith("S "))


def test_checkpoints_are_compared_on_the_items_that_both_have() -> None:
    scores = [score("S_0", row, value) for row, value in enumerate([0.0, 0.0, 1.0, 1.0])]
    scores += [score("S_1", row, value) for row, value in enumerate([1.0, 0.0, 1.0, None])]
    result = evaluation_result(loaded(), ["S_0", "S_1"], [], scores, seed=0)
    (found,) = result.differences
    assert (found.checkpoint, found.against) == ("S_1", "S_0")
    assert (found.estimate.value, found.estimate.items) == (pytest.approx(1 / 3), 3)


def test_judges_stand_apart_and_together_and_their_agreement_is_told() -> None:
    said = {"a": [1, 1, 0, 0], "b": [1, 0, 0, None]}
    scores = [
        score("S", row, value, scorer="reference", judge=judge, label="correct" if value else "incorrect")
        for judge, values in said.items()
        for row, value in enumerate(values)
    ]
    result = evaluation_result(loaded(), ["S"], [], scores, seed=0)
    by_judge = {row.judge: row.estimate.value for row in result.rows if not row.part}
    assert by_judge == {"all judges": pytest.approx((1 + 0.5) / 4), "a": 0.5, "b": pytest.approx(1 / 3)}
    assert result.scorer == "reference" and result.headline("S").value == pytest.approx(0.375)  # type: ignore[union-attr]
    (agreed,) = result.agreement
    assert (agreed.answers, agreed.same) == (3, pytest.approx(2 / 3))
    # Chance agrees in (2/3 * 1/3 + 1/3 * 2/3) = 4/9 of the cases.
    assert agreed.kappa == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))
    assert agreed.mean_gap == pytest.approx(1 / 3)


def test_judges_of_other_scorers_are_not_held_against_each_other() -> None:
    marks = [Mark("reference", "a", "q0", "S-0", 1.0), Mark("rubric", "b", "q0", "S-0", 1.0)]
    assert agreements(marks) == []


def test_a_rubric_is_told_by_its_dimensions() -> None:
    scores = [
        score("S", row, (facts + 0) / 2, scorer="rubric", judge="j", marks=(facts, 0.0))
        for row, facts in enumerate([1.0, 0.0, 1.0, 1.0])
    ]
    result = evaluation_result(loaded(), ["S"], [], scores, seed=0)
    assert numbers(result, "rubric", "criterion: Facts") == {("S", "avg@1"): 0.75}
    assert numbers(result, "rubric", "criterion: Form") == {("S", "avg@1"): 0.0}


def test_what_answers_took_is_told_without_those_that_failed() -> None:
    answers = [
        answered("S", 0, "a", tokens=100, searches=2),
        answered("S", 1, None, RolloutStatus.TRUNCATED, tokens=300),
        answered("S", 2, None, RolloutStatus.FAILED),
        answered("other", 0, "a"),
    ]
    asked = Verdict(value=True, tokens_in=40, tokens_out=2)
    unasked = Verdict(value=True, attempts=0, tokens_in=99)
    scores = [
        score("S", 0, 1.0, scorer="reference", judge="j", label="correct", verdicts=(asked, unasked)),
        score("S", 1, 0.0, scorer="reference", judge="j", label="not_attempted", verdicts=(asked,)),
    ]
    (row,) = evaluation_result(loaded(), ["S"], answers[:3], scores, seed=0).behaviour
    assert (row.answers, row.failed) == (3, 1)
    assert row.valid is not None and (row.valid.value, row.valid.items) == (0.5, 2)
    assert row.tokens is not None and row.searches is not None and row.truncated is not None
    assert (row.tokens.value, row.searches.value, row.truncated.value) == (200, 1, 0.5)
    assert (row.judge_calls, row.judge_tokens) == (pytest.approx(2 / 3), pytest.approx(28))
    assert row.labels == {"correct": 1, "not_attempted": 1}


def answered(
    checkpoint: str,
    row: int,
    answer: str | None,
    status: RolloutStatus = RolloutStatus.FINISHED,
    *,
    tokens: int = 0,
    searches: int = 0,
) -> Answer:
    turns = (*(Turn(query="x") for _ in range(searches)), Turn(ids=(1,) * tokens))
    made = answering(checkpoint, f"q{row}", answer, status).model_copy(update={"turns": turns})
    return Answer.of(made, checkpoint, f"q{row}", 0)


def both(row: int, forth: float | None, back: float | None, *, valid: bool = True) -> list[PairVerdict]:
    """S_0 against S_1 in both orders; margins are those of S_0."""
    return [
        judged_pair(
            f"q{row}",
            *names,
            None if margin is None else Outcome(sign * margin, 0.0),
            both_answered=valid,
            judge="j",
        )
        for names, sign, margin in ((("S_0", "S_1"), 1, forth), (("S_1", "S_0"), -1, back))
    ]


def test_every_two_checkpoints_meet_in_both_orders_unless_an_answer_failed() -> None:
    answers = {
        "S_0": {f"q{row}": answering("S_0", f"q{row}", "a") for row in range(3)},
        "S_1": {
            "q0": answering("S_1", "q0", "b"),
            "q1": answering("S_1", "q1", None),
            "q2": answering("S_1", "q2", None, RolloutStatus.FAILED),
        },
    }
    met = pairs(ITEMS, answers)
    assert [(each.item_id, each.first_name, each.second_name) for each in met] == [
        ("q0", "S_0", "S_1"),
        ("q0", "S_1", "S_0"),
        ("q1", "S_0", "S_1"),
        ("q1", "S_1", "S_0"),
    ]


def test_win_rates_keep_ties_apart_and_show_a_judge_that_likes_the_first() -> None:
    met = [*both(0, 1, 1), *both(1, 1, -1), *both(2, 0, 0), *both(3, -1, None, valid=False)]
    result = evaluation_result(loaded(), ["S_0", "S_1"], [], [], met, seed=0)
    (found,) = result.wins
    assert (found.wins, found.ties, found.losses, found.failed) == (3, 2, 2, 1)
    assert (found.rate.value, found.rate.items) == (pytest.approx((1 + 0.5 + 0.5 + 0) / 4), 4)
    assert found.rate_of_valid is not None and found.rate_of_valid.value == pytest.approx(2 / 3)
    # q0 won by each place once, q1 by the first place twice, q3 by the second.
    assert found.shown_first == pytest.approx(3 / 5)


def test_judges_of_pairs_are_averaged_and_apart_and_their_agreement_is_told() -> None:
    mine = [*both(0, 1, 1), *both(1, 1, 1)]
    theirs = [each.model_copy(update={"judge": "k"}) for each in (*both(0, 1, 1), *both(1, -1, None))]
    result = evaluation_result(loaded(), ["S_0", "S_1"], [], [], [*mine, *theirs], seed=0)
    rates = {row.judge: (row.rate.value, row.wins, row.ties, row.losses, row.failed) for row in result.wins}
    # q1 in one order: one judge for each, so half; in the other order only the first one said anything.
    assert rates == {
        "all judges": (pytest.approx((1 + 0.75) / 2), 3, 1, 0, 0),
        "j": (1.0, 4, 0, 0, 0),
        "k": (0.5, 2, 0, 1, 1),
    }
    assert list(result.elo) == ["all judges", "j", "k"]
    (agreed,) = result.agreement
    assert (agreed.scorer, agreed.answers, agreed.same) == ("pairwise", 3, pytest.approx(2 / 3))


def test_win_rates_by_one_criterion_stand_beside_those_of_whole_answers() -> None:
    by_one = [
        each.model_copy(update={"criterion": place, "dimension": name})
        for place, name, margin in ((0, "Facts", 1), (1, "", -1))
        for each in both(0, margin, margin)
    ]
    result = evaluation_result(loaded(), ["S_0", "S_1"], [], [], [*both(0, 0, 0), *by_one], seed=0)
    assert {row.part: (row.rate.value, row.ties) for row in result.wins} == {
        "": (0.5, 2),
        "each criterion": (0.5, 0),
        "criterion: Facts": (1.0, 0),
    }
    # A strength is that of whole answers.
    assert result.elo["j"]["S_1"].value == pytest.approx(0.0, abs=1e-6)
    lines = lines_of(result)
    assert any(line.startswith("S_0") and "criterion: Facts" in line for line in lines)


def test_pairs_meet_by_every_criterion_that_ought_to_be_met() -> None:
    item = ITEMS[0].model_copy(update={"criteria": (*CRITERIA, ItemCriterion(text="Boasts.", points=-1))})
    answers = {name: {"q0": answering(name, "q0", "a")} for name in ("S_0", "S_1")}
    assert [met.criterion for met in pairs([item], answers)] == [None, None]
    met = pairs([item], answers, by_criterion=True)
    assert [each.criterion for each in met] == [None, None, 0, 0, 1, 1]
    assert [each.first_name for each in met[2:4]] == ["S_0", "S_1"]


def test_elo_follows_who_was_better_and_a_tie_is_half_a_win() -> None:
    met = [pair for row in range(4) for pair in (both(row, 1, 1) if row < 3 else both(row, -1, -1))]
    result = evaluation_result(loaded(), ["S_0", "S_1", "alone"], [], [], met, seed=0)
    found = result.elo["j"]
    assert set(found) == {"S_0", "S_1"}
    assert found["S_0"].value == 0 and found["S_0"].low is None
    # Three to one: 400 * log10(1/3).
    assert found["S_1"].value == pytest.approx(-190.8, abs=3)
    assert found["S_1"].low is not None and found["S_1"].low < -190.8 < (found["S_1"].high or 0)


async def test_a_pairing_shows_the_judge_the_rubric_or_one_criterion_alone() -> None:
    from tests.unit.evaluation.test_rating import Reader

    class Listener(Reader):
        asked: object = None

        async def ask(self, question: Question[Any]) -> Reply[Any]:
            self.asked = question.rubric  # type: ignore[attr-defined]
            return await super().ask(question)

    answers = {name: {"q0": answering(name, "q0", name)} for name in ("S_0", "S_1")}
    whole, _, by_one, _ = pairs([ITEMS[0]], answers, by_criterion=True)[:4]
    judge = Listener()
    found = await judge_pair(judge, ITEMS[0], whole)
    assert (found.first, found.second, found.item_id, found.both_answered) == ("S_0", "S_1", "q0", True)
    assert found.outcome is not None and judge.asked == ITEMS[0].rubric
    found = await judge_pair(judge, ITEMS[0], by_one)
    assert (found.criterion, found.dimension) == (0, "Facts") and judge.asked == CRITERIA[0].asked
