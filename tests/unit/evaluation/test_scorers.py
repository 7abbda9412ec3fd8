"""Every scorer on answers whose worth is known; what no judge is asked about."""

from typing import Any

import pytest

from scope_selfplay.base.values import Criterion, Outcome, RolloutStatus, Verdict
from scope_selfplay.evaluation.rows import Item, ItemCriterion
from scope_selfplay.evaluation.scorers import SCORERS, Answer, AnswerScore, score_answer
from scope_selfplay.judge.protocol import GradeQuestion, PairQuestion, Question, Reply, Scale, ScoreQuestion
from tests.unit.evaluation.contestants import UNREADABLE, answering

ITEM = Item(
    id="q",
    question="What causes tides?",
    answers=("the Moon", "Moon and Sun"),
    criteria=(
        ItemCriterion(text="moon", points=3, dimension="facts"),
        ItemCriterion(text="sun", points=1),
        ItemCriterion(text="magnets", points=-2),
    ),
    given="The Moon, and the Sun too.",
)


class WordJudge:
    """Finds a criterion met where its words occur, marks by words, prefers the longer answer; `silent` fails on one."""

    identity = "words"

    def __init__(self, silent: str = "nothing at all") -> None:
        self.calls: list[str] = []
        self._silent = silent

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case GradeQuestion(criterion=criterion, answer=answer):
                self.calls.append(criterion.text)
                if criterion.text == self._silent:
                    return Reply(None, UNREADABLE)
                met = criterion.text in answer.lower()
                return Reply(met, Verdict(value=met))
            case ScoreQuestion(task, rollout=rollout, rubric=rubric, scale=scale):
                self.calls.append(scale.value)
                answer = (rollout.answer or "").lower()
                value = float(min(10, len(answer.split())))
                if scale is Scale.REFERENCE:
                    assert task.reference == "the Moon\nMoon and Sun"
                    value = 1.0 if "moon" in answer else 0.5 if "not know" in answer else 0.0
                elif isinstance(rubric, Criterion):
                    value = 10.0 * (rubric.text in answer)
                return Reply(value, Verdict(value=True))
            case PairQuestion(first=first, second=second):
                self.calls.append("compare")
                words = [float(len((each.answer or "").split())) for each in (first, second)]
                return Reply(Outcome(*words), Verdict(value=True))
        raise AssertionError(question)


async def scored(
    name: str, answer: str | None, *, item: Item = ITEM, judge: WordJudge | None = None, failed: bool = False
) -> AnswerScore:
    status = RolloutStatus.FAILED if failed else RolloutStatus.FINISHED
    asked: object = judge or WordJudge()
    return await score_answer(
        SCORERS[name],
        item,
        Answer.of(answering("S", "q", answer, status), "S", "q", 0),
        judge=asked,  # type: ignore[arg-type]
        key=("k",),
    )


@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        ("exact_match", "The moon.", 1.0),
        ("f1", "moon and magnets", 2 / 3),
        ("cover_exact_match", "It is the moon, they say.", 1.0),
        ("hotpot_f1", "moon", 1.0),
        ("trivia_exact_match", "The_Moon", 1.0),
        ("trivia_f1", "moon", 1.0),
        ("reference", "The moon does.", 1.0),
        ("reference", "I do not know.", 0.0),
        ("rubric", "Moon and sun.", 1.0),
        ("rubric", "Moon and magnets.", 0.25),
        ("rubric", "Magnets.", -0.5),
        ("criteria_rating", "The moon.", 0.75),
        ("rating", "The moon does it.", 0.4),
        ("win_rate", "The moon.", 0.0),
        ("win_rate", "The moon and also the sun, I think.", 1.0),
        ("win_rate", "one two three four five six", 0.5),
        ("race", "moon and sun", 0.5),
        ("race", "moon", 3 / 7),
    ],
)
async def test_a_scorer_gives_what_the_answer_is_worth(name: str, answer: str, value: float) -> None:
    found = await scored(name, answer)
    assert found.value == pytest.approx(value)
    assert (found.scorer, found.judge) == (name, "words" if SCORERS[name].asks_judge else "")


@pytest.mark.parametrize(
    ("answer", "right", "value"),
    [
        (r"So \boxed{C}.", "C", 1.0),
        (r"\boxed{\text{(C)}}", "C", 1.0),
        (r"\boxed{A} no, \boxed{B}", "B", 1.0),
        (r"\boxed{B or C}", "B", 0.0),
        ("C", "C", 0.0),
        (r"\boxed{Carbon}", "C", 0.0),
    ],
)
async def test_a_choice_is_the_one_letter_in_the_last_box(answer: str, right: str, value: float) -> None:
    item = Item(id="q", question="?", answers=(right,))
    assert (await scored("choice", answer, item=item)).value == value


async def test_a_box_may_hold_any_of_the_right_answers_and_votes_by_its_content() -> None:
    item = Item(id="q", question="?", answers=("7", "12"))
    found = await scored("boxed", r"It is \boxed{ 1 2 }.", item=item)
    assert found.label == "12"
    assert (await scored("boxed", r"\boxed{12}", item=item)).value == 1.0
    assert (await scored("boxed", "12", item=item)).value == 0.0


@pytest.mark.parametrize("name", sorted(SCORERS))
async def test_no_answer_is_worth_nothing_and_a_failed_rollout_is_not_scored(name: str) -> None:
    judge = WordJudge()
    for answer in (None, "", "  "):
        assert (await scored(name, answer, judge=judge)).value == 0.0
    failed = await scored(name, "The moon.", judge=judge, failed=True)
    assert failed.value is None
    assert judge.calls == []


async def test_a_missing_verdict_is_left_out() -> None:
    found = await scored("rubric", "Moon.", judge=WordJudge(silent="sun"))
    assert (found.value, found.marks) == (1.0, (1.0, None, 0.0))


async def test_what_a_judge_with_the_reference_says_is_kept_apart() -> None:
    labels = [(await scored("reference", answer)).label for answer in ("Moon", "I do not know", "Magnets")]
    assert labels == ["correct", "not_attempted", "incorrect"]
