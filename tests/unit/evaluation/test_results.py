"""Records become a result: numbers that can be counted by hand, and the same bytes in any order."""

from typing import Any

import pytest

from scope_selfplay.base.values import Outcome, RolloutStatus, Turn, Verdict
from scope_selfplay.evaluation.benchmarks import Benchmark, Decoding
from scope_selfplay.evaluation.folder import tables_of
from scope_selfplay.evaluation.metrics import (
    EvaluationResult,
    evaluation_result,
    majority,
    pass_at,
    pass_counts,
)
from scope_selfplay.evaluation.pairs import Mark, PairVerdict, agreements, judge_pair, pairs
from scope_selfplay.evaluation.rows import Fields, Item, ItemCriterion
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from tests.unit.evaluation.contestants import answering, judged_pair
from tests.unit.reward_designs.scripted import ScriptedJudge


def test_pass_at_k_of_many_samples_is_that_of_the_paper_and_told_for_powers_of_two_and_all() -> None:
    """Chen et al. (2021): 1 - prod(1 - k / i) for i from n - c + 1 to n."""
    product = 1.0
    for place in range(200 - 37 + 1, 201):
        product *= 1 - 10 / place
    assert pass_at(10, 37, 200) == pytest.approx(1 - product)
    found = [pass_counts(samples) for samples in (1, 6, 16)]
    assert found == [(1,), (1, 2, 4, 6), (1, 2, 4, 8, 16)]


def test_the_majority_is_what_most_answers_say() -> None:
    assert majority(["3", "4", "4"], [1, 0, 0]) == 0.0
    assert majority(["3", "4"], [1, 0]) == 0.5
    assert majority(["3", "", ""], [1, 0, 0]) == 1.0
    assert majority(["", ""], [0, 0]) == 0.0
    assert majority(["a", "a", "b"], [1, 0, 0]) == 0.5


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


def loaded(samples: int = 1) -> Benchmark:
    scorers, decoding = ("exact_match", "reference", "rubric"), Decoding(samples=samples)
    return Benchmark("invented", "Invented", "nowhere", Fields(), scorers, decoding=decoding, items=ITEMS)


def score(checkpoint: str, row: int, value: float | None, *, sample: int = 0, **more: Any) -> AnswerScore:
    ids = {"item_id": f"q{row}", "answer_id": f"{checkpoint}-{row}-{sample}", "checkpoint": checkpoint}
    return AnswerScore(sample=sample, value=value, **{"scorer": "exact_match", **ids, **more})


def result_of(*scores: AnswerScore, samples: int = 1) -> EvaluationResult:
    names = list(dict.fromkeys(each.checkpoint for each in scores))
    return evaluation_result(loaded(samples), names, [], scores, seed=0)


def result_of_pairs(*met: PairVerdict) -> EvaluationResult:
    return evaluation_result(loaded(), ["S_0", "S_1", "alone"], [], [], met, seed=0)


def numbers(
    result: EvaluationResult, scorer: str = "exact_match", part: str = ""
) -> dict[tuple[str, str], float]:
    rows = [row for row in result.rows if (row.scorer, row.part) == (scorer, part)]
    return {(row.checkpoint, row.metric): row.estimate.value for row in rows}


def lines_of(result: EvaluationResult) -> list[str]:
    return [line for table in tables_of(result) for line in table.text()]


def test_samples_of_an_item_become_one_value_of_each_metric() -> None:
    """q0: 2 of 4 right, by vote right; q1: 1 of 4, by vote wrong; q2: all; q3: a fault and 3 wrong ones."""
    right: dict[int, list[float | None]] = {
        0: [1, 1, 0, 0],
        1: [1, 0, 0, 0],
        2: [1, 1, 1, 1],
        3: [None, 0, 0, 0],
    }
    said = {0: ["a", "a", "b", "c"], 1: ["a", "b", "b", "c"], 2: ["a"] * 4, 3: ["", "a", "b", "c"]}
    scores = (
        score("S", row, value, sample=place, label=said[row][place])
        for row, values in right.items()
        for place, value in enumerate(values)
    )
    assert numbers(result_of(*scores, samples=4)) == {
        ("S", "avg@4"): pytest.approx((0.5 + 0.25 + 1 + 0) / 4),
        ("S", "pass@1"): pytest.approx((0.5 + 0.25 + 1 + 0) / 4),
        ("S", "pass@2"): pytest.approx((5 / 6 + 1 / 2 + 1 + 0) / 4),
        # q3 has three samples only.
        ("S", "pass@4"): pytest.approx((1 + 1 + 1) / 3),
        ("S", "maj@4"): pytest.approx((1 + 0 + 1 + 0) / 4),
    }


def test_a_fault_is_no_zero_and_is_counted_and_parts_are_told_apart() -> None:
    result = result_of(*(score("S", row, value) for row, value in enumerate([1.0, None, 0.0, 1.0])))
    row = result.rows[0]
    assert (row.estimate.value, row.estimate.items, row.missing) == (pytest.approx(2 / 3), 3, 1)
    assert row.estimate.note == "only 3 items"
    assert numbers(result, part="group: even") == {("S", "avg@1"): 0.5}
    assert result.headline("S") == row.estimate
    assert "(only 3 items, 1 missing)" in next(line for line in lines_of(result) if line.startswith("S "))
    # A rubric is told by its dimensions.
    marks = [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.0)]
    more: dict[str, Any] = {"scorer": "rubric", "judge": "j"}
    result = result_of(
        *(score("S", row, sum(each) / 2, marks=each, **more) for row, each in enumerate(marks))
    )
    assert numbers(result, "rubric", "criterion: Facts") == {("S", "avg@1"): 0.75}
    assert numbers(result, "rubric", "criterion: Form") == {("S", "avg@1"): 0.0}


def test_checkpoints_are_compared_on_the_items_that_both_have() -> None:
    told: dict[str, list[float | None]] = {"S_0": [0.0, 0.0, 1.0, 1.0], "S_1": [1.0, 0.0, 1.0, None]}
    scores = (score(name, row, value) for name, values in told.items() for row, value in enumerate(values))
    (found,) = result_of(*scores).differences
    assert (found.checkpoint, found.against) == ("S_1", "S_0")
    assert (found.estimate.value, found.estimate.items) == (pytest.approx(1 / 3), 3)


def test_judges_stand_apart_and_together_and_their_agreement_is_told() -> None:
    said: dict[str, list[float | None]] = {"a": [1, 1, 0, 0], "b": [1, 0, 0, None]}
    result = result_of(
        *(
            score("S", row, value, scorer="reference", judge=judge, label="correct" if value else "incorrect")
            for judge, values in said.items()
            for row, value in enumerate(values)
        )
    )
    by_judge = {row.judge: row.estimate.value for row in result.rows if not row.part}
    assert by_judge == {"all judges": pytest.approx((1 + 0.5) / 4), "a": 0.5, "b": pytest.approx(1 / 3)}
    assert result.scorer == "reference" and result.headline("S").value == pytest.approx(0.375)  # type: ignore[union-attr]
    (agreed,) = result.agreement
    assert (agreed.answers, agreed.same) == (3, pytest.approx(2 / 3))
    # Chance agrees in (2/3 * 1/3 + 1/3 * 2/3) = 4/9 of the cases.
    assert agreed.kappa == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))
    assert agreed.mean_gap == pytest.approx(1 / 3)
    # Judges of other scorers are not held against each other.
    marks = [Mark("reference", "a", "q0", "S-0", 1.0), Mark("rubric", "b", "q0", "S-0", 1.0)]
    assert agreements(marks) == []


def test_what_answers_took_is_told_without_those_that_failed() -> None:
    def answered(name: str, row: int, status: RolloutStatus, *, tokens: int = 0, searches: int = 0) -> Answer:
        turns = (*(Turn(query="x") for _ in range(searches)), Turn(ids=(1,) * tokens))
        answer = "a" if status is RolloutStatus.FINISHED else None
        made = answering(name, f"q{row}", answer, status).model_copy(update={"turns": turns})
        return Answer.of(made, name, f"q{row}", 0)

    answers = [
        answered("S", 0, RolloutStatus.FINISHED, tokens=100, searches=2),
        answered("S", 1, RolloutStatus.TRUNCATED, tokens=300),
        answered("S", 2, RolloutStatus.FAILED),
    ]
    asked = Verdict(value=True, tokens_in=40, tokens_out=2)
    unasked = Verdict(value=True, attempts=0, tokens_in=99)
    more: dict[str, Any] = {"scorer": "reference", "judge": "j"}
    scores = [
        score("S", 0, 1.0, label="correct", verdicts=(asked, unasked), **more),
        score("S", 1, 0.0, label="not_attempted", verdicts=(asked,), **more),
    ]
    (row,) = evaluation_result(loaded(), ["S"], answers, scores, seed=0).behaviour
    assert (row.answers, row.failed) == (3, 1)
    assert row.valid is not None and (row.valid.value, row.valid.items) == (0.5, 2)
    assert row.tokens is not None and row.searches is not None and row.truncated is not None
    assert (row.tokens.value, row.searches.value, row.truncated.value) == (200, 1, 0.5)
    assert (row.judge_calls, row.judge_tokens) == (pytest.approx(2 / 3), pytest.approx(28))
    assert row.labels == {"correct": 1, "not_attempted": 1}


def both(row: int, forth: float | None, back: float | None, **more: Any) -> list[PairVerdict]:
    """S_0 against S_1 in both orders; margins are those of S_0."""
    given = {"both_answered": True, "judge": "j", **more}
    return [
        judged_pair(f"q{row}", *names, None if margin is None else Outcome(sign * margin, 0.0), **given)
        for names, sign, margin in ((("S_0", "S_1"), 1, forth), (("S_1", "S_0"), -1, back))
    ]


def test_win_rates_keep_ties_apart_and_show_a_judge_that_likes_the_first() -> None:
    met = [*both(0, 1, 1), *both(1, 1, -1), *both(2, 0, 0), *both(3, -1, None, both_answered=False)]
    (found,) = result_of_pairs(*met).wins
    assert (found.wins, found.ties, found.losses, found.failed) == (3, 2, 2, 1)
    assert (found.rate.value, found.rate.items) == (pytest.approx((1 + 0.5 + 0.5 + 0) / 4), 4)
    assert found.rate_of_valid is not None and found.rate_of_valid.value == pytest.approx(2 / 3)
    # q0 won by each place once, q1 by the first place twice, q3 by the second.
    assert found.shown_first == pytest.approx(3 / 5)
    # Elo of three to one: 400 * log10(1/3).
    met = [pair for row in range(4) for pair in (both(row, 1, 1) if row < 3 else both(row, -1, -1))]
    elo = result_of_pairs(*met).elo["j"]
    assert set(elo) == {"S_0", "S_1"} and (elo["S_0"].value, elo["S_0"].low) == (0, None)
    assert (
        elo["S_1"].value == pytest.approx(-190.8, abs=3) and elo["S_1"].ends[0] < -190.8 < elo["S_1"].ends[1]
    )


def test_judges_of_pairs_are_averaged_and_apart_and_their_agreement_is_told() -> None:
    theirs = [*both(0, 1, 1, judge="k"), *both(1, -1, None, judge="k")]
    result = result_of_pairs(*both(0, 1, 1), *both(1, 1, 1), *theirs)
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


async def test_a_pairing_shows_the_judge_the_rubric_or_one_criterion_alone() -> None:
    answers = {name: {"q0": answering(name, "q0", said)} for name, said in (("S_0", "7"), ("S_1", "3"))}
    pairings, judge = pairs([ITEMS[0]], answers, by_criterion=True), ScriptedJudge()
    whole, by_one = [await judge_pair(judge, ITEMS[0], pairings[place]) for place in (0, 2)]
    assert (whole.first, whole.second, whole.item_id, whole.both_answered) == ("S_0", "S_1", "q0", True)
    assert (whole.share, by_one.criterion, by_one.dimension) == (1.0, 0, "Facts")
    assert judge.rubrics == [ITEMS[0].rubric, CRITERIA[0].asked]
