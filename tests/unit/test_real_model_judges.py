"""The verifier that stands in for a judge in `make bench-real-model`, and how a model is measured as one; no model."""

import asyncio

import numpy as np
import pytest

from benchmarks.real_model.agreement import VOTES, Agreed, AgreementJudge, OpenBook, agreement
from benchmarks.real_model.asked_questions import AskedQuestion
from benchmarks.real_model.challenger import CONFIG
from benchmarks.real_model.judge_findings import Asked, findings, share_read
from benchmarks.real_model.judging import FORMS, Form, cases, choice_odds, won
from scope_selfplay.config import load_config
from scope_selfplay.gates import Gate
from scope_selfplay.prompts.folder import check_pack
from scope_selfplay.schemas import Comparison, Criterion, Document, Outcome, Task, Verdict
from scope_selfplay.tools import UseTool
from tests.word_codec import WordCodec

TASK = Task(id="t", text="What is the capital?", type="question", document_id="d")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["Moroni", "the Moroni.", "moroni", "Paris"], Agreed("Moroni", 0.75)),
        (["Paris", "Moroni"], Agreed("Paris", 0.5)),
        ([None, None, None, "Moroni"], Agreed("Moroni", 0.25)),
        ([None, "...", None], Agreed(None, 0.0)),
    ],
)
def test_missing_answers_agree_with_nothing(answers: list[str | None], expected: Agreed) -> None:
    assert agreement(answers) == expected


def test_with_an_open_book_every_search_finds_the_document() -> None:
    book = OpenBook(Document(id="d", title="Comoros: government", text="Capital: Moroni."))
    found = asyncio.run(book.use(UseTool("search", {"query": "anything"})))
    assert found.passages is not None and [each.text for each in found.passages] == ["Capital: Moroni."]


class Reader(AgreementJudge):
    def __init__(self, answers: list[str | None]) -> None:
        self._answers, self._known = answers, {}

    async def _read(self, task: Task, document: Document) -> list[str | None]:
        return self._answers


@pytest.mark.parametrize(
    ("answers", "passes"), [(["Moroni"] * 3 + ["Paris"], True), (["Moroni", "Moroni", "Paris", None], False)]
)
def test_what_readers_agree_on_is_what_a_solver_must_answer(answers: list[str | None], passes: bool) -> None:
    judge, document = Reader(answers), Document(id="d", title="", text="")

    async def judged() -> tuple[bool | None, list[bool | None]]:
        verdict = await judge.gate("source", TASK, document)  # type: ignore[arg-type]
        rubric = await judge.write_rubric(TASK, [document])
        assert rubric is not None
        (criterion,) = rubric.criteria
        said = [await judge.grade(TASK, criterion, answer, key=()) for answer in ("moroni", "Paris")]
        return verdict.value, [each.value for each in said]

    assert asyncio.run(judged()) == (passes, [True, False])


def test_the_wrong_answer_of_a_case_is_another_country_s() -> None:
    chosen = cases(40)
    assert len({case.task.id for case in chosen}) == 40
    assert all(case.right != case.wrong for case in chosen)
    capital = chosen[0]
    assert capital.right == "Moroni" and capital.wrong not in ("", "2,360 m")
    assert capital.criterion == Criterion(text="Gives the right answer: Moroni")


def test_odds_are_those_of_first_tokens_among_the_choices() -> None:
    codec = WordCodec()
    first, second = (codec.encode_tag(word)[0] for word in ("1", "0"))
    logits = np.full(max(first, second) + 1, -50.0)
    logits[first], logits[second] = 2.0, 2.0 + np.log(3)
    assert choice_odds(logits, ("1", "0"), codec) == pytest.approx({"1": 0.25, "0": 0.75})


def test_a_comparison_is_won_lost_tied_or_unread() -> None:
    verdict = Verdict(value=True)
    outcomes = [Outcome(1.0, 0.0), Outcome(0.0, 1.0), Outcome(0.5, 0.5), None]
    found = [Comparison(first_id="a", second_id="b", outcome=each, verdict=verdict) for each in outcomes]
    assert [won(each) for each in found] == [1.0, 0.0, 0.5, None]


def test_a_judge_that_always_prefers_the_first_is_right_by_halves_and_all_bias() -> None:
    replies = {
        "grade right": ([1.0] * 20, [0.9] * 20),
        "grade wrong": ([0.0] * 10 + [1.0] * 10, [0.8] * 20),
        "grade wrong longer": ([1.0] * 19 + [None], [0.8] * 10 + [0.7] * 9 + [None]),
        "right first": ([1.0] * 20, [0.9] * 20),
        "wrong first": ([1.0] * 20, [0.8] * 15 + [0.95] * 5),
        "longer first": ([1.0] * 20, [None] * 20),
        "shorter first": ([0.0] * 20, [None] * 20),
    }
    asked = [
        Asked(name=name, values=tuple(values), odds=tuple(odds)) for name, (values, odds) in replies.items()
    ]
    assert share_read(asked) == 139 / 140
    found = {each.title: each.found and each.found.value for each in findings(asked)}
    assert found == {
        "grades that are right": 0.75,
        "right answers that meet the criterion": 1.0,
        "wrong answers that meet it": 0.5,
        "wrong answers with 150 empty words that meet it": 1.0,
        "comparisons, both orders, that the right answer wins": 0.5,
        "comparisons that the first wins": 1.0,
        "what being shown first adds to a win": 1.0,
        "comparisons that 150 empty words win": 1.0,
        "pairs whose right answer meets the criterion likelier": 1.0,
        "wrong answers that 150 empty words make likelier to meet it": pytest.approx(5 / 19),
        "pairs whose right answer wins likelier, both orders": 0.75,
        "pairs whose longer answer wins likelier, both orders": None,
    }


@pytest.mark.parametrize("form", FORMS.values())
def test_the_judges_prompts_are_whole(form: Form) -> None:
    assert check_pack(form.pack) == []


def test_the_challengers_stage_is_rewarded_by_agreement_alone() -> None:
    config = load_config(CONFIG)
    assert config.judge.gates == (Gate.SOURCE,) and config.judge.kind == "verifier"
    assert config.challenger.kl_beta == 0 and config.challenger.rollouts == VOTES


@pytest.mark.parametrize(
    ("text", "read", "names", "stands"),
    [
        ("What is the capital of Comoros?", "Moroni", True, True),
        ("What is the capital?", "Maputo", False, False),
        (None, None, False, False),
    ],
)
def test_a_question_is_looked_at_by_rule(
    text: str | None, read: str | None, names: bool, stands: bool
) -> None:
    asked = AskedQuestion(document="cn-government", text=text, read=read)
    assert (asked.names_its_country, asked.is_read_in_the_passage) == (names, stands)
