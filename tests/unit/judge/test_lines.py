"""A judge's connections belong to the loop that asks, and go with it."""

import asyncio

import pytest
from scope_selfplay.judge.chat_client import ChatRequest
from scope_selfplay.judge.endpoint_pool import Lines
from scope_selfplay.judge.prompts import JudgeRole
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer

from scope_selfplay.config import JudgeConfig
from scope_selfplay.judge.metrics import JudgeMetrics
from tests.judges import says


def test_a_loop_that_ends_closes_its_endpoints_without_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> str:
        async with FakeServer(says("yes")).serving() as url:
            endpoint = {"base_url": url, "model": FAKE_MODEL}
            config = JudgeConfig.model_validate({"kind": "model", "endpoint": endpoint})
            lines = Lines(config, JudgeMetrics())
            board = await lines.here()
            assert len({id(each) for each in board.endpoints.values()}) == 1
            return (
                await board.endpoints[JudgeRole.GRADE].ask(ChatRequest("Is it so?", max_tokens=8), seconds=5)
            ).text

    assert asyncio.run(ask()) == "yes"
    assert [record.message for record in caplog.records] == []
