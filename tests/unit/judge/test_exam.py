"""A judge is examined before it judges: a sound one passes, every unsound one is named, and a shifted one is mended."""

import asyncio
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from starlette.responses import PlainTextResponse

from scope_selfplay.base.errors import ConfigError, JudgeError, RunMismatchError
from scope_selfplay.base.values import Document, Gate
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.judge.cases import CLAIM_TEXTS, HOSTILE_TEXTS, Canary, cases_of
from scope_selfplay.judge.checks import CanaryKind, Exam, read_exam
from scope_selfplay.judge.exam import examine
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    GuardQuestion,
    PairQuestion,
    RubricQuestion,
    Style,
)
from scope_selfplay.judge.rules import LexicalJudge, with_noise
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.net.serve import Responder, ServedReply, ServedRequest
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.report.judge import exam_tables
from scope_selfplay.run.exam import check_exam, hold_exam, questions_of, thresholds_of
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.chat_server import FakeServer
from tests import schemas
from tests.judges import CRITERION, DOCUMENT, ONE, OTHER, RUBRIC, TASK, JudgeOver, always

WORLD = embedded_documents(0, load_config(None, []).corpus)
GATES = [GateQuestion(TASK, gate, DOCUMENT) for gate in (Gate.SOURCE, Gate.ENTITY)]
GRADE = GradeQuestion(TASK, CRITERION, "Because of floods.")
PAIR = PairQuestion(TASK, ONE, OTHER, style=Style.SCORES, rubric=RUBRIC)
LETTER = PairQuestion(TASK, ONE, OTHER, style=Style.PREFERENCE)
GUARD = GuardQuestion(TASK, "")


def lexical(**noise: Any) -> Responder:
    judge = with_noise(LexicalJudge(), NoiseConfig.model_validate(noise) if noise else None)
    return lambda request: judged_reply(judge, request)


async def examined(judge: ModelJudge, *questions: Any, **own: Any) -> Exam:
    return await examine(judge, questions, cases_of(None, WORLD), sample=40, seed=0, documents=WORLD, **own)


@pytest.mark.parametrize("verdict", ["written", "token"])
async def test_a_sound_judge_passes_in_every_question(judge_over: JudgeOver, verdict: str) -> None:
    async with judge_over(lexical(), verdict=verdict, guard=False, patience=100.0) as judge:
        exam = await examined(judge, *GATES, RubricQuestion(TASK, [DOCUMENT]), GRADE, PAIR, LETTER)
    assert (exam.failed, exam.doubtful) == ({}, {}), exam
    assert {each.order.value for each in exam.questions.values() if each.order} == {1.0}
    assert exam.questions["rubric"].shares["criteria from the document"].value == 1.0
    assert 36 <= exam.questions["grade"].asked <= 40
    assert set(exam.thresholds) == ({"gate_source", "gate_entity", "grade"} if verdict == "token" else set())


async def test_cases_and_marks_of_ones_own_come_first_and_are_counted(judge_over: JudgeOver) -> None:
    own = cases_of(None, WORLD)(random.Random(9))
    marks = [Canary(each, CanaryKind.RIGHT, own, "", expected=True) for each in (GRADE, GATES[0])]
    async with judge_over(lexical(), guard=False, patience=100.0) as judge:
        exam = await examined(judge, GATES[0], GRADE, PAIR, own=[own], marks=marks)
    assert [each.own for each in exam.questions.values()] == [3, 3, 2]
    # What is marked the lexical judge does not understand.
    assert [each.order and each.order.value for each in exam.questions.values()] == [0.975, 0.975, 1.0]
    assert "39, 3 own" in str(exam_tables(exam)[0])


@pytest.mark.parametrize(
    ("served", "question", "fault"),
    [
        (lexical(wrong=1.0), GRADE, "in order"),
        (always("<think>yes</think><score>1</score>"), GRADE, "in order"),
        (always("Well, that depends on what one makes of it."), GRADE, "readable"),
        (always("<think>so</think><score>1</score>"), GATES[0], "in order"),
        (lexical(first=1.0), PAIR, "in order"),
        (lexical(longer=1.0, half_length=30), PAIR, "in order"),
        (always("<first>7</first><second>7</second>"), PAIR, "in order"),
        (always("I would write a rubric."), RubricQuestion(TASK, [DOCUMENT]), "readable"),
    ],
    ids="wrong yes prose yes-gate first longer ties no-rubric".split(),
)
async def test_a_judge_that_cannot_judge_is_named_with_the_question_and_the_figure(
    judge_over: JudgeOver, served: Responder, question: Any, fault: str
) -> None:
    async with judge_over(served, guard=False, retries=0, patience=100.0) as judge:
        exam = await examined(judge, question)
    assert list(exam.failed) == [question.name] and fault in exam.failed[question.name], exam
    said: list[str] = []
    settings = load_config(None, ["judge.exam=report"]).judge
    check_exam(exam, settings, said.append)
    assert len(said) == 1 and question.name in said[0] and "\n" not in said[0]
    with pytest.raises(ConfigError, match=r"another pack .*judge.exam: report"):
        check_exam(exam, settings.model_copy(update={"exam": "stop"}), said.append)


async def test_an_exam_without_an_answer_says_so_instead_of_counting_it(judge_over: JudgeOver) -> None:
    async with judge_over(
        lambda _: PlainTextResponse("", 503), guard=False, retries=0, patience=1.0
    ) as judge:
        with pytest.raises(JudgeError, match=r"question grade was not answered.*the same command goes on"):
            await examined(judge, GRADE)


def shifted(likely: Callable[[str], float]) -> Responder:
    """A judge of the world whose yes is as likely as this says of what it should be."""
    sound = lexical()

    async def reply(request: ServedRequest) -> ServedReply:
        speaks = any(claim[:40] in request.prompt for claim in (*CLAIM_TEXTS, *HOSTILE_TEXTS))
        said = ServedReply(str(int(speaks))) if "Yes" in request.choices else await sound(request)  # type: ignore[misc]
        if not request.choices:
            return said
        odds, (yes, no, *_) = likely(said.text), request.choices
        return ServedReply(yes if odds > 0.5 else no, {yes: odds, no: 1 - odds}, finish="length")

    return reply


async def test_a_threshold_makes_a_judge_of_one_that_says_no_to_everything(judge_over: JudgeOver) -> None:
    served = shifted(lambda said: 0.35 if said == "1" else 0.05)
    async with judge_over(served, verdict="token", guard=False, patience=100.0) as judge:
        exam = await examined(judge, GRADE, GUARD)
        assert exam.failed == {}
        grade = exam.questions["grade"]
        assert grade.right is not None and grade.right.value == 1.0 and (grade.threshold or 0) < -0.7
        judge.thresholds = exam.thresholds
        calibrated = await examined(judge, GRADE)
        assert calibrated.questions["grade"].threshold == pytest.approx(0.0, abs=1e-6)
        met = (await judge.ask(GRADE)).verdict
        assert met.value is ((met.probability or 0) > 0.5)
        # Its word alone is no in every case.
        assert re.fullmatch(r"0 \(calibrated: 0\.\d\d\)", met.reasoning)
    assert grade.shares["claims met, with the guard"].value == 0.0


async def test_a_guard_that_suspects_honest_answers_flags_hardly_one(judge_over: JudgeOver) -> None:
    def reply(request: ServedRequest) -> ServedReply:
        speaks = any(claim[:40] in request.prompt for claim in (*CLAIM_TEXTS, *HOSTILE_TEXTS))
        drawn = crc32(request.prompt.encode()) % 5
        odds = (0.9 if drawn < 3 else 0.6) if speaks else (0.7 if drawn == 0 else 0.1)
        return ServedReply("Yes", {"Yes": odds, "No": 1 - odds}, finish="length")

    async with judge_over(reply, verdict="token", guard=False, patience=100.0) as judge:
        guard = (await examined(judge, GUARD)).questions["guard"]
    assert (
        guard.shares["no where it should be"].value > 0.95
        and guard.shares["yes where it should be"].value > 0.4
    )


async def test_an_answer_that_praises_itself_meets_nothing_and_is_asked_once(judge_over: JudgeOver) -> None:
    asked = []

    def reply(request: ServedRequest) -> ServedReply:
        asked.append(request.choices)
        said = "Yes" if "Yes" in request.choices else "1"
        return ServedReply(said, {said: 0.9, "No" if said == "Yes" else "0": 0.1}, finish="length")

    async with judge_over(reply, verdict="token", score="soft", cache=None, patience=100.0) as judge:
        found = await judge.ask(GradeQuestion(TASK, CRITERION, CLAIM_TEXTS[0]))
    assert found.value is False and found.degree is None and "own worth" in found.verdict.reasoning
    assert sorted(asked) == [("1", "0"), ("Yes", "No")]
    async with judge_over(reply, verdict="token", guard=False, score="soft") as judge:
        assert (await judge.ask(GRADE)).degree == pytest.approx(0.9)


@pytest.mark.parametrize("later", [{}, {"1": 0.88, "0": 0.05}, {"1": 0.95, "0": 0.5}, {"0": 0.8}], ids=str)
async def test_a_run_keeps_its_exam_and_is_told_of_another_judge(
    tmp_path: Path, judge_over: JudgeOver, later: dict[str, float]
) -> None:
    settings = ["judge.verdict=token", "judge.kind=model", "judge.exam=report"]
    config = load_config(None, [*settings, "judge.endpoint.base_url=http://h"])
    pack = load_pack(pack_path("wikipedia"))
    names = {each.name for each in questions_of(config, pack)}
    assert {"gate_source", "rubric", "grade", "guard", "compare_scores"} <= names
    run, said = (config, pack, list[Document](WORLD), RunFolder(tmp_path / "run")), list[str]()
    likely = {"1": 0.8, "0": 0.1}
    fake = FakeServer(shifted(lambda said: likely[said]))
    served = partial(judge_over, fake, cache=tmp_path / "c", verdict="token", guard=False, patience=100.0)
    async with served() as judge:
        exam = await asyncio.to_thread(hold_exam, judge, *run, said.append, sample=20)
    assert read_exam(run[-1]) == exam and "is examined in" in said[0]
    schemas.validate(run[-1].path)
    fake.requests.clear()
    likely |= later
    # Replies that were paid for are kept, and hide nobody: a few of the exam's items are asked anew.
    async with served() as judge:
        again = asyncio.to_thread(thresholds_of, judge, *run, said.append)
        if later.get("0", 0.0) > 0.1:
            with pytest.raises(
                RunMismatchError, match=r"^.*grade: log-odds \+1.4, \+1.4, -2.2, -2.2, found.*$"
            ):
                await again
        else:
            assert await again == exam.thresholds
        prompts = [anchor.prompt for each in exam.questions.values() for anchor in each.anchors]
        assert len(prompts) == 4 * len(exam.thresholds)
        assert sorted(request.prompt for request in fake.requests) == sorted(prompts)
        judge.uncalibrated = "another judge"
        with pytest.raises(RunMismatchError, match=r"another judge.*another --name"):
            thresholds_of(judge, *run, said.append)
