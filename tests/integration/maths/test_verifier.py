"""The verifier with its library and its process: what counts as equal, and what hostile answers cannot do."""

import os
import re
import signal
from pathlib import Path

import pytest

from scope_selfplay.base.values import Check, Criterion, Fault, Rollout, Rubric, Task
from scope_selfplay.judge.protocol import (
    GradeQuestion,
    PairQuestion,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    grade_answer,
)
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.rewards.verify import BoxedVerifier, boxed_reward
from tests.reference_files import read_reference


def box(text: str) -> str:
    return f"So it is \\boxed{{{text}}}."


REWARDS = read_reference("text_match_cases.json")["boxed_rewards"]


def test_equal_expressions_are_right_and_others_wrong() -> None:
    found = [[answer, reference, boxed_reward(box(answer), reference)] for answer, reference, _ in REWARDS]
    assert found == REWARDS


@pytest.mark.parametrize("hostile", ["9^{9^{9^9}}", "10000000000000000000000!", r"\prod_{i=1}^{10^9} i^i"])
def test_an_answer_without_end_is_wrong_and_the_next_one_is_read(hostile: str) -> None:
    assert boxed_reward(box("6/2"), "3") == 1.0
    # Without its limit of CPU time the library would never come back.
    assert boxed_reward(box(hostile), "3") == 0.0
    assert boxed_reward(box("6/2"), "3") == 1.0


OPENED = Path("/proc/self/fd")


def test_a_killed_process_is_replaced() -> None:
    verifier, opened = BoxedVerifier(), len(list(OPENED.iterdir()))
    assert verifier.reward(box("6/2"), "3") == 1.0
    assert verifier.process is not None
    limits = Path(f"/proc/{verifier.process}/limits").read_text()
    assert re.search(r"core file size +0 +0 ", limits) and re.search(
        r"address space +(2147483648 +){2}", limits
    )
    os.kill(verifier.process, signal.SIGKILL)
    # Nothing is known of an answer that never reached the library; the next one finds a new process.
    assert verifier.reward(box("6/2"), "3") is None
    assert verifier.reward(box("6/2"), "3") == 1.0
    last = verifier.process
    for _ in range(2):
        verifier.close()
    assert verifier.process is None and last is not None and len(list(OPENED.iterdir())) == opened
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


TASK = Task(id="t", text="1 + 2", type="question", document_id="", reference="3")


async def test_a_checked_criterion_is_decided_by_its_rule_and_costs_no_call() -> None:
    rubric = Rubric(task_id="t", criteria=(Criterion(text="Right.", check=Check.BOXED),))
    for answer, score in ((box("6/2"), 1.0), (box("4"), 0.0), ("3", 0.0), (None, 0.0)):
        grade = await grade_answer(VerifierJudge(), TASK, rubric, Rollout.of_answer(answer), key=(0,))
        assert grade.score == score and all(each.attempts == 0 for each in grade.verdicts)
    bare = TASK.model_copy(update={"reference": None})
    grade = await grade_answer(VerifierJudge(), bare, rubric, Rollout.of_answer(box("3")), key=(0,))
    assert grade.score is None and not grade.is_whole


async def test_the_verifier_judge_knows_right_from_wrong_and_refuses_the_rest() -> None:
    right, wrong = Rollout.of_answer(box("6/2"), "right"), Rollout.of_answer(box("4"), "wrong")
    bare = TASK.model_copy(update={"reference": None})
    for question, value in (
        (PairQuestion(TASK, wrong, right, style=Style.PREFERENCE), (0.0, 1.0)),
        (PairQuestion(TASK, right, right, style=Style.SCORES), (1.0, 1.0)),
        (PairQuestion(bare, right, wrong, style=Style.SCORES), None),
        (SelectQuestion(TASK, None, [wrong, right], 1), [1]),
        (SelectQuestion(TASK, None, [right, right], 1), None),
        (ScoreQuestion(TASK, right, None, scale=Scale.CORRECTNESS), 1.0),
        (GradeQuestion(TASK, Criterion(text="Is polite."), "x"), None),
        (RubricQuestion(TASK, ()), None),
    ):
        found = await VerifierJudge().ask(question)
        assert found.value == value and (found.verdict.fault is Fault.REFUSED) == (value is None)
