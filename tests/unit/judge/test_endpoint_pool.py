"""A judge's connections belong to the loop that asks, and go with it."""

import asyncio

import pytest

from scope_selfplay.config import JudgeConfig, JudgeRole
from scope_selfplay.judge.chat_client import ChatRequest
from scope_selfplay.judge.endpoint_pool import pool_per_loop
from scope_selfplay.judge.metrics import JudgeMetrics
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer
from tests.judges import always


def test_a_loop_that_ends_closes_its_endpoints_without_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> str:
        async with FakeServer(always("yes")).serving() as url:
            endpoint = {"base_url": url, "model": FAKE_MODEL}
            config = JudgeConfig.model_validate({"kind": "model", "endpoint": endpoint})
            pools = pool_per_loop(config, JudgeMetrics())
            pool = await pools.here()
            assert len({id(endpoint) for endpoint in pool.endpoints.values()}) == 1
            return (
                await pool.endpoints[JudgeRole.GRADE].ask(ChatRequest("Is it so?", max_tokens=8), seconds=5)
            ).text

    assert asyncio.run(ask()) == "yes"
    assert [record.message for record in caplog.records] == []
