"""A judge in several replicas: a task's prompts stay together, and a replica that dies makes no verdict wrong."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Fault, Verdict
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.endpoint import ask_endpoints, with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GradeQuestion
from scope_selfplay.net.chat import CANARY
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer, FaultKind, FaultPlan
from tests.judges import CRITERION, TASK, always, sound

pytestmark = pytest.mark.integration

TASKS = [TASK.model_copy(update={"text": f"Why was dam number {number} built?"}) for number in range(24)]
ANSWERS = ["Because of floods.", "For power.", "For ships.", "Nobody knows."]


class AnswersCanariesAlone(FaultPlan):
    def draw(self, body: Mapping[str, object]) -> FaultKind | None:
        return None if CANARY.prompt in str(body["messages"]) else FaultKind.RESET


def config_of(urls: Sequence[str], **settings: Any) -> JudgeConfig:
    endpoint = {"base_url": urls, "model": FAKE_MODEL}
    return JudgeConfig.model_validate(
        {"kind": "model", "endpoint": endpoint, "patience": 5.0, "concurrency": 8, **settings}
    )


@asynccontextmanager
async def judge_of(pack: Pack, fakes: Sequence[FakeServer], **settings: Any) -> AsyncIterator[ModelJudge]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(fake.serving()) for fake in fakes]
        config = config_of(urls, **settings)
        judge = ModelJudge(config, pack, seed=0)
        yield judge
        await judge.close()


async def grade_all(judge: ModelJudge) -> list[Verdict]:
    asked = [GradeQuestion(task, CRITERION, answer) for answer in ANSWERS for task in TASKS]
    return [reply.verdict for reply in await asyncio.gather(*map(judge.ask, asked))]


def tasks_of(fake: FakeServer) -> set[str]:
    return {task.text for task in TASKS for request in fake.requests if task.text in request.prompt}


async def test_a_tasks_prompts_stay_together_and_verdicts_are_those_of_one_judge(pack: Pack) -> None:
    async with judge_of(pack, [FakeServer(sound)]) as judge:
        truth = [verdict.value for verdict in await grade_all(judge)]
    fakes = [FakeServer(sound) for _ in range(3)]
    async with judge_of(pack, fakes) as judge:
        assert [verdict.value for verdict in await grade_all(judge)] == truth
    assert {True, False} == set(truth)
    served = [tasks_of(fake) for fake in fakes]
    assert sum(map(len, served)) == len(TASKS) and all(len(each) >= 3 for each in served)
    assert sum(len(fake.requests) for fake in fakes) == len(truth)


@pytest.mark.parametrize("death", [FaultKind.RESET, FaultKind.HANG, FaultKind.UNAVAILABLE])
async def test_a_replica_that_dies_makes_no_verdict_wrong_and_none_missing(
    pack: Pack, death: FaultKind
) -> None:
    async with judge_of(pack, [FakeServer(sound)]) as judge:
        truth = [verdict.value for verdict in await grade_all(judge)]

    async def until_death(request: ServedRequest) -> ServedReply:
        if len(dying.requests) >= 12:
            dying.fault = death
        await asyncio.sleep(0.01)
        return sound(request)

    dying, other = FakeServer(until_death), FakeServer(sound)
    async with judge_of(pack, [dying, other]) as judge:
        verdicts = await grade_all(judge)
    assert [verdict.value for verdict in verdicts] == truth
    assert dying.injected[death] > 0
    asked = [request.prompt for request in other.requests]
    assert len(asked) == len(set(asked)), "no judgement is paid for twice by the replica that lives"


async def timed_grade(judge: ModelJudge, answer: str) -> tuple[Verdict, float]:
    began = time.monotonic()
    verdict = (await judge.ask(GradeQuestion(TASK, CRITERION, answer))).verdict
    return verdict, time.monotonic() - began


@pytest.mark.fault(3)
@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_an_outage_that_lasts_is_waited_for_once(pack: Pack, replicas: int) -> None:
    fakes = [FakeServer(sound) for _ in range(replicas)]
    for fake in fakes:
        fake.fault = FaultKind.RESET
    async with judge_of(pack, fakes, patience=1.0, failure_budget=1.0) as judge:
        began = time.monotonic()
        verdicts = await grade_all(judge)
        assert {verdict.fault for verdict in verdicts} == {Fault.UNAVAILABLE}
        assert any("down for more than 1 s" in verdict.reasoning for verdict in verdicts)
        assert 0.9 < time.monotonic() - began < 3
        for answer in ANSWERS[1:]:
            verdict, seconds = await timed_grade(judge, answer)
            assert verdict.fault is Fault.UNAVAILABLE and seconds < 0.5


async def test_one_that_comes_back_after_all_were_given_up_judges_again(pack: Pack) -> None:
    fakes = [FakeServer(sound) for _ in range(2)]
    for fake in fakes:
        fake.fault = FaultKind.RESET
    async with judge_of(pack, fakes, patience=0.5, failure_budget=1.0) as judge:
        assert {verdict.fault for verdict in await grade_all(judge)} == {Fault.UNAVAILABLE}
        fakes[1].fault = None
        async with asyncio.timeout(10.0):
            while (await timed_grade(judge, ANSWERS[0]))[0].value is None:
                await asyncio.sleep(0.05)
    assert fakes[0].injected[FaultKind.RESET] > 0


async def test_an_outage_of_all_is_counted_from_when_the_last_went_down(pack: Pack) -> None:
    fakes = [FakeServer(sound) for _ in range(2)]
    fakes[0].fault = FaultKind.RESET
    async with judge_of(pack, fakes, patience=1.0, failure_budget=1.0) as judge:
        await grade_all(judge)
        assert fakes[0].injected
        await asyncio.sleep(1.2)
        fakes[1].fault = FaultKind.RESET
        began = time.monotonic()
        verdicts = await grade_all(judge)
    assert {verdict.fault for verdict in verdicts} == {
        Fault.UNAVAILABLE
    } and 0.9 < time.monotonic() - began < 3


@pytest.mark.parametrize("replicas", [1, 2])
async def test_calls_that_no_replica_survives_end_although_canaries_are_answered(
    pack: Pack, replicas: int
) -> None:
    fakes = [FakeServer(sound, plan=AnswersCanariesAlone()) for _ in range(replicas)]
    async with (
        judge_of(pack, fakes, retries=1, failure_budget=1.0) as judge,
        asyncio.timeout(10.0),
    ):
        verdict, _ = await timed_grade(judge, ANSWERS[0])
    assert verdict.fault is Fault.UNAVAILABLE and verdict.attempts == 2
    assert all(fake.injected[FaultKind.RESET] <= 2 for fake in fakes)


async def test_replicas_serve_the_same_model_and_each_is_asked_for_a_token_at_the_start() -> None:
    fakes = [FakeServer(always("1")), FakeServer(always("1"))]
    async with fakes[0].serving() as first, fakes[1].serving() as second:
        assert await ask_endpoints(config_of([first, second])) == [
            f"fake at {url}" for url in (first, second)
        ]
        assert [len(fake.requests) for fake in fakes] == [1, 1]
    other = FakeServer(always("1"), model="other")
    async with fakes[0].serving() as first, other.serving() as second:
        config = config_of([first, second])
        unnamed = EndpointConfig(base_url=(first, second))
        with pytest.raises(ConfigError, match=r"serves other, .* fake; servers of one model serve the same"):
            await with_models(config.model_copy(update={"endpoint": unnamed}))
