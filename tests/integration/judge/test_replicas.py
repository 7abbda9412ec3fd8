"""A judge in several replicas: a task's prompts stay together, and a replica that dies makes no verdict wrong."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from scope_selfplay.config import EndpointConfig, JudgeConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.inference.chat_server import ServedReply, ServedRequest
from scope_selfplay.judge.cache import JudgementCache
from scope_selfplay.judge.endpoint_pool import ask_endpoints, with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.prompts import Pack
from scope_selfplay.schemas import Verdict
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer, FaultKind
from tests.judges import CRITERION, TASK, always

pytestmark = pytest.mark.integration

TASKS = [TASK.model_copy(update={"text": f"Why was dam number {number} built?"}) for number in range(24)]
ANSWERS = ["Because of floods.", "For power.", "For ships.", "Nobody knows."]
SWIFT = {"silence": 0.25, "canary": 0.25, "call": 5.0, "outage": 2.0, "failures": 8}


def sound(request: ServedRequest) -> ServedReply:
    """A judge whose verdict follows from the prompt alone."""
    digit = hashlib.sha256(request.prompt.encode()).digest()[0] & 1
    return ServedReply(f"<think>so</think><score>{digit}</score>")


def config_of(urls: Sequence[str]) -> JudgeConfig:
    endpoint = {"base_url": urls[0], "replicas": urls[1:], "model": FAKE_MODEL}
    return JudgeConfig.model_validate(
        {"kind": "model", "endpoint": endpoint, "patience": SWIFT, "concurrency": 8}
    )


@asynccontextmanager
async def judge_of(pack: Pack, fakes: Sequence[FakeServer]) -> AsyncIterator[ModelJudge]:
    async with AsyncExitStack() as stack:
        config = config_of([await stack.enter_async_context(fake.serving()) for fake in fakes])
        judge = ModelJudge(config, pack, seed=0, cache=JudgementCache(None))
        yield judge
        await judge.close()


async def grade_all(judge: ModelJudge) -> list[Verdict]:
    asked = [(task, answer) for answer in ANSWERS for task in TASKS]
    return list(await asyncio.gather(*(judge.grade(task, CRITERION, text, key=(0,)) for task, text in asked)))


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


async def test_one_that_comes_back_gets_its_tasks_again(pack: Pack) -> None:
    fakes = [FakeServer(sound) for _ in range(2)]
    async with judge_of(pack, fakes) as judge:
        for fake in fakes:
            fake.fault = FaultKind.RESET
        grading = asyncio.create_task(grade_all(judge))
        while not all(fake.injected.total() >= 8 for fake in fakes):
            await asyncio.sleep(0.01)
        for fake in fakes:
            fake.fault = None
        assert all(verdict.value is not None for verdict in await grading)
        both = [tasks_of(fake) for fake in fakes]
    assert all(both)


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
        unnamed = EndpointConfig(base_url=first, replicas=(second,))
        with pytest.raises(ConfigError, match=r"serves other, .* fake; replicas serve the same"):
            await with_models(config.model_copy(update={"endpoint": unnamed}))
