"""`scope serve-model`: over the wire as in this process, and what its clients and operators see."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scope_selfplay.base.errors import InferenceError, RunMismatchError
from scope_selfplay.base.machine import free_port
from scope_selfplay.base.sampling import Generate, Message, PolicyModel, Sample
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served import Served, ServedModel, ask_what_is_served
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.net.serve import serving
from scope_selfplay.store.folder import weights_hash
from tests.clock import Clock

POLICY = RetryPolicy(deadline=200.0, attempt=200.0, attempts=None, first_pause=0.05)


@pytest.fixture(scope="module")
def asked(codec: ChatCodec) -> list[Generate]:
    """Twelve prompts that share beginnings, ended by one token, by several, and by length; some greedy."""
    stops = [("</search>",), ("</search>", " Mill of"), ()]
    return [
        Generate(
            codec.encode_prompt([Message("user", "Report the river of Aldmoor Mill. " * (1 + row // 4))]),
            20 + row,
            stops[row % 3],
            greedy=row % 5 == 0,
        )
        for row in range(12)
    ]


async def together(model: PolicyModel, asked: list[Generate]) -> list[Sample]:
    return await asyncio.gather(*(model.generate(request, ("key", row)) for row, request in enumerate(asked)))


@asynccontextmanager
async def server_of(policy: Path, port: int = 0, **options: Any) -> AsyncIterator[tuple[str, ModelService]]:
    service = ModelService(str(policy), **{"name": "tiny", "slots": 8, "max_length": 160, **options})
    async with serving(model_app(service), port=port) as url:
        yield url, service


def client_of(
    url: str, codec: ChatCodec, *more: str, weights: str | None = None, **options: Any
) -> ServedModel:
    settings: dict[str, Any] = {"identity": "S_0", "max_length": 160, "temperature": 0.8, **options}
    served = Served("tiny", None, weights, 160)
    return ServedModel(lambda: Client(url, *more, retry_policy=POLICY), served, codec, **settings)


async def test_the_same_request_gives_the_same_ids_as_in_this_process(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    here = InProcessModel(
        load_model(random_policy), codec, identity="S_0", slots=3, max_length=160, temperature=0.8
    )
    expected = await together(here, asked)
    async with server_of(random_policy) as (url, _):
        async with Client(url) as client:
            served = await ask_what_is_served(client, None)
        found = await together(client_of(url, codec, weights=served.weights), asked)
        with pytest.raises(RunMismatchError, match=f"now serves weights {weights_hash(random_policy)}"):
            await client_of(url, codec, weights="0" * 12).generate(asked[0], ("key",))
    assert served == Served("tiny", str(random_policy.resolve()), weights_hash(random_policy), 160)
    assert [each.ids for each in found] == [each.ids for each in expected]
    assert [each.finish for each in found] == [each.finish for each in expected]
    for request, ours, theirs in zip(asked, found, expected, strict=True):
        assert ours.logprobs is not None and theirs.logprobs is not None
        if not request.greedy:  # greedy choices are scored at temperature 1, as vLLM does it
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


async def test_a_client_that_goes_away_frees_its_slot(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    async with server_of(random_policy, slots=1) as (url, service):

        def held() -> int:
            return service.engine.running + service.engine.waiting

        model = client_of(url, codec)
        calls = [asyncio.create_task(model.generate(each, (row,))) for row, each in enumerate(asked)]
        while held() < len(calls):
            await asyncio.sleep(0)
        for call in calls[1:]:
            call.cancel()
        await calls[0]
        async with asyncio.timeout(120):
            while held():
                await asyncio.sleep(0.01)


async def test_refusals_say_what_is_wrong(random_policy: Path, codec: ChatCodec) -> None:
    async with server_of(random_policy, api_key="secret") as (url, service), aiohttp.ClientSession() as http:

        async def status(key: str = "secret", **changes: object) -> int:
            body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 2, **changes}
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(f"{url}/completions", json=body, headers=headers) as response:
                assert response.status == 200 or (await response.json())["error"]["message"]
                return response.status

        assert await status() == 200
        assert await status(key="wrong") == 401
        assert await status(model="other") == 404
        assert await status(prompt="text") == 400
        service.queue = 0
        assert await status() == 429
        service.draining = True
        assert await status() == 503
        async with http.get(url.replace("/v1", "/health")) as response:
            assert response.status == 503
        async with http.get(url.replace("/v1", "/metrics")) as response:
            text = await response.text()
    assert 'scope_model_requests_total{status="200"} 1.0' in text
    assert 'scope_model_tokens_total{direction="in"} 2.0' in text
    with pytest.raises(InferenceError, match="does not fit a context"):
        await client_of(url, codec).generate(Generate(tuple([1] * 160), 5), ())


async def test_a_server_that_is_back_in_time_costs_no_turn_and_one_that_stays_away_is_told_once(
    random_policy: Path, codec: ChatCodec, asked: list[Generate], clock: Clock
) -> None:
    outages: list[InferenceError] = []
    async with server_of(random_policy) as (url, _):
        model = client_of(url, codec, on_outage=outages.append)
        expected = await model.generate(asked[0], ("key", 0))
    waiting = asyncio.create_task(model.generate(asked[0], ("key", 0)))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with server_of(random_policy, port=int(url.split(":")[2].removesuffix("/v1"))):
        assert await waiting == expected
    for _ in range(2):
        late = asyncio.create_task(model.generate(asked[0], ("key", 0)))
        while not late.done():
            await asyncio.sleep(0.1)
            clock.skip(POLICY.deadline)
        with pytest.raises(InferenceError, match="run the same command again"):
            await late
    assert len(outages) == 1


def test_the_command_serves_and_ends_when_it_is_told_to(random_policy: Path, codec: ChatCodec) -> None:
    options = [str(random_policy), "--port", str(free_port())]
    command = [sys.executable, "-m", "scope_selfplay.cli", "serve-model", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            url = said.split()[-1].removesuffix("/v1")
            with urllib.request.urlopen(f"{url}/info", timeout=60) as response:
                assert json.load(response)["weights"] == weights_hash(random_policy)
            body = {"prompt": list(codec.encode_prompt([Message("user", "a")])), "max_tokens": 300, "seed": 1}
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps({**body, "return_token_ids": True}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                assert json.load(response)["choices"][0]["token_ids"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(120) == 0
            assert f"weights {weights_hash(random_policy)}" in said
        finally:
            server.kill()
