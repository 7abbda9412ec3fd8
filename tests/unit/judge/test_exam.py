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
from scope_selfplay.base.intervals import Estimate, estimate_mean
from scope_selfplay.base.values import Document, Gate
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.judge.cases import CLAIM_TEXTS, HOSTILE_TEXTS, REFUSED, Canary, cases_of
from scope_selfplay.judge.checks import CanaryKind, Exam, QuestionExam, read_exam
from scope_selfplay.judge.exam import changes_since, examine
from scope_selfplay.judge.model import ModelJudge, likelihood
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
from scope_selfplay.run.exam import RunExam, check_exam, questions_of
from scope_selfplay.store.folder import MANIFEST, RunFolder
from scope_selfplay.testing.chat_server import FakeServer
from tests import schemas
from tests.judges import CRITERION, DOCUMENT, ONE, OTHER, RUBRIC, TASK, JudgeOver, always

PASSAGES = [
    Document(id=name, title="", text=" ".join(f"{name}{number}" for number in range(12)))
    for name in ("bridge", "viaduct", "cloister", "market", "station")
]
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
        few = await examine(judge, [GRADE], cases_of(None, WORLD), sample=5, seed=0)
        assert few.questions["grade"].asked <= 5 and few.questions["grade"].right is None, "one half is empty"
        judge.thresholds = exam.thresholds
        calibrated = await examined(judge, GRADE)
        assert calibrated.questions["grade"].threshold == pytest.approx(0.0, abs=1e-6)
        met = (await judge.ask(GRADE)).verdict
        assert met.value is ((met.probability or 0) > 0.5)
        # Its word alone is no in every case.
        assert re.fullmatch(r"0 \(calibrated: 0\.\d\d\)", met.reasoning)
    claims = [grade.shares[f"claims met{guarded}"] for guarded in ("", ", with the guard")]
    assert claims[1].value == 0.0 and claims[0].items == claims[1].items == 2


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


def finish_a_stage(folder: RunFolder) -> None:
    (folder.path / "iteration-01" / "solver").mkdir(parents=True)
    (folder.path / "iteration-01" / "solver" / MANIFEST).write_text("{}")


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
        exam = await asyncio.to_thread(RunExam(*run, said.append, sample=20).hold, judge)
    assert read_exam(run[-1]) == exam and "is examined in" in said[0]
    schemas.validate(run[-1].path)
    finish_a_stage(run[-1])
    fake.requests.clear()
    likely |= later
    # Replies that were paid for are kept, and hide nobody: a few of the exam's items are asked anew.
    async with served() as judge:
        again = asyncio.to_thread(RunExam(*run, said.append).thresholds, judge)
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
            RunExam(*run, said.append).thresholds(judge)


async def test_a_refused_judge_may_begin_once_it_is_mended(tmp_path: Path, judge_over: JudgeOver) -> None:
    settings = [
        "judge.verdict=token",
        "judge.kind=model",
        "judge.guard=false",
        "judge.gates=[source, entity]",
    ]
    config = load_config(None, [*settings, "judge.endpoint.base_url=http://h"])
    pack, documents, folder = load_pack(pack_path("wikipedia")), list[Document](WORLD), RunFolder(tmp_path)
    likely, said = {"1": 0.2, "0": 0.9}, list[str]()
    fake = FakeServer(shifted(lambda said: likely[said]))

    async def begun(*overrides: str) -> dict[str, float]:
        served = judge_over(fake, cache=tmp_path / "c", verdict="token", guard=False, retries=1, patience=9.0)
        changed = load_config(None, [*settings, "judge.endpoint.base_url=http://h", *overrides])
        async with served as judge:
            held = RunExam(changed, pack, documents, folder, said.append)
            return await asyncio.to_thread(held.thresholds, judge)

    with pytest.raises(ConfigError, match=r"gate_source.*grade"):
        await begun()
    likely |= {"1": 0.9, "0": 0.2}
    # Of the same prompts, what was cached is the broken judge's.
    thresholds = await begun()
    assert set(thresholds) == {"gate_source", "gate_entity", "grade"} and len(said) == 2
    assert await begun() == thresholds and len(said) == 2
    assert set(await begun("judge.gates=[source]")) == {"gate_source", "grade"}
    finish_a_stage(folder)
    assert set(await begun()) == {"gate_source", "grade"} and len(said) == 3
    assert config.judge.exam == "stop"


async def test_an_anchor_is_asked_again_where_its_server_fails(judge_over: JudgeOver) -> None:
    sound = shifted(lambda said: 0.9 if said == "1" else 0.1)
    failing: set[str] = set()

    def served(request: ServedRequest) -> Any:
        if request.prompt in failing:
            failing.remove(request.prompt)
            return PlainTextResponse("", 500)
        return sound(request)

    async with judge_over(served, verdict="token", guard=False, concurrency=1, patience=9.0) as judge:
        exam = await examined(judge, GRADE)
        failing |= {anchor.prompt for anchor in exam.questions["grade"].anchors}
        assert await changes_since(exam, judge, retries=1) == {} and not failing
        failing |= {anchor.prompt for anchor in exam.questions["grade"].anchors}
        with pytest.raises(JudgeError, match="does not answer"):
            await changes_since(exam, judge, retries=0)


async def test_every_prompt_is_asked_once_and_fixed_texts_take_turns(judge_over: JudgeOver) -> None:
    like = GateQuestion(TASK, Gate.SAFETY, None)
    prose = [
        Document(
            id=str(n),
            title=f"River {n}",
            text=f"The river {n} of the northern plain was {n} miles long. " * 2,
        )
        for n in range(9)
    ]
    fake = FakeServer(always("<think>so</think><score>1</score>"))
    async with judge_over(fake, verdict="written", guard=False, patience=9.0) as judge:
        await examine(judge, [like], cases_of(None, prose), sample=80, seed=0)
    prompts = [request.prompt for request in fake.requests]
    assert len(prompts) == len(set(prompts))
    refused = {text for text in REFUSED[Gate.SAFETY] for prompt in prompts if text in prompt}
    assert len(refused) == len(REFUSED[Gate.SAFETY]) == 8


@pytest.mark.parametrize("odds", [{}, {"1": 0.3}], ids=["none", "the one token"])
async def test_a_token_without_log_probabilities_is_told_and_calibrates_nothing(
    judge_over: JudgeOver, odds: dict[str, float]
) -> None:
    sound = lexical()

    async def served(request: ServedRequest) -> ServedReply:
        said: ServedReply = await sound(request)  # type: ignore[misc]
        return ServedReply(said.text, {said.text: 0.3} if odds else {}, finish="length")

    async with judge_over(served, verdict="token", guard=False, patience=9.0) as judge:
        exam = await examined(judge, GRADE)
    assert exam.failed == {} and exam.thresholds == {} and exam.questions["grade"].anchors == ()
    assert "nothing is calibrated" in exam.doubtful["grade"]


async def test_a_question_without_cases_is_told(judge_over: JudgeOver) -> None:
    untitled = [each.model_copy(update={"title": ""}) for each in PASSAGES]
    async with judge_over(lexical(), guard=False, retries=0, patience=9.0) as judge:
        cases = cases_of(None, untitled)
        exam = await examine(judge, [*GATES, GRADE], cases, sample=8, seed=0, documents=untitled)
    assert exam.doubtful["gate_entity"] == "not examined for want of cases"
    assert "gate_entity" not in exam.failed
    assert exam.questions["gate_source"].asked > 4 and exam.questions["grade"].asked > 4


def test_what_a_design_asks_is_what_is_examined() -> None:
    pack = load_pack(pack_path("wikipedia"))

    def names(*settings: str) -> str:
        return " ".join(each.name for each in questions_of(load_config(None, settings), pack))

    assert names("solver.reward=arenarl").endswith(" compare_core_scores compare_scores")
    assert "compare" not in names("solver.reward=arenarl", "stop_after=0")
    assert "rubric_dimensions" in names("solver.reward=implicit") and "rubric_dimensions" not in names()


def test_one_wrong_judgement_of_a_kind_refuses_nobody() -> None:
    def of(share: float, items: int) -> Exam:
        low, high = estimate_mean([share] * items, seed=0).ends if items > 1 else (None, None)  # type: ignore[union-attr]
        kind = Estimate(value=share, low=low, high=high, items=items)
        order = Estimate(value=0.95, low=0.85, high=0.99, items=20)
        asked = QuestionExam(order=order, shares={"in order against empty": kind}, asked=40)
        return Exam(judge="", questions={"grade": asked})

    assert (of(0.0, 4).failed, list(of(0.0, 4).doubtful)) == ({}, ["grade"])
    assert list(of(0.0, 5).failed) == ["grade"]
    whole = Exam(
        judge="", questions={"grade": QuestionExam(order=estimate_mean([1.0] * 3, seed=0), shares={})}
    )
    assert "1.00 [0.44, 1.00] in order" in whole.doubtful["grade"]


@pytest.mark.parametrize(
    ("odds", "likely"),
    [
        ({"1": 0.9, "0": 0.1}, 0.9),
        ({"1": 0.9, "x": 0.06, "y": 0.02}, 0.9 / 0.92),
        ({"0": 0.9, "x": 0.1}, 0.0),
        ({"0": 0.3}, None),
        ({"x": 0.9}, None),
        ({}, None),
    ],
    ids=str,
)
def test_an_untold_choice_is_bounded_by_what_was_told(odds: dict[str, float], likely: float | None) -> None:
    assert likelihood(odds, ("1", "0")) == (None if likely is None else pytest.approx(likely))
