"""`scope serve-model`: over the wire as in this process, and what its clients and operators see."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")


from scope_selfplay.base.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.base.sampling import Generate, Message, PolicyModel, Sample
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served import Served, ServedModel, ask_what_is_served
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.net.client import Client, RetryPolicy, rank
from scope_selfplay.net.serve import serving
from scope_selfplay.store.folder import weights_hash
from tests.ports import free_port

pytestmark = pytest.mark.integration

OPTIONS: dict[str, Any] = {"name": "tiny", "slots": 8, "max_length": 160}
HASTY = RetryPolicy(deadline=1.0, attempt=30.0, attempts=None, first_pause=0.05)


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


async def _together(model: PolicyModel, asked: list[Generate]) -> list[Sample]:
    return await asyncio.gather(*(model.generate(request, ("key", row)) for row, request in enumerate(asked)))


def _client(url: str, codec: ChatCodec, served: Served, *more: str, **options: Any) -> ServedModel:
    settings: dict[str, Any] = {"identity": "S_0", "max_length": 160, "temperature": 0.8, **options}
    return ServedModel(lambda: Client(url, *more, retry_policy=HASTY), served, codec, **settings)


async def test_the_same_request_gives_the_same_ids_as_in_this_process(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    here = InProcessModel(
        load_model(random_policy), codec, identity="S_0", slots=3, max_length=160, temperature=0.8
    )
    expected = await _together(here, asked)
    async with serving(model_app(ModelService(str(random_policy), **OPTIONS))) as url:
        async with Client(url) as client:
            served = await ask_what_is_served(client, None)
        found = await _together(_client(url, codec, served), asked)
    assert served == Served("tiny", str(random_policy.resolve()), weights_hash(random_policy), 160)
    assert [each.ids for each in found] == [each.ids for each in expected]
    assert [each.finish for each in found] == [each.finish for each in expected]
    for request, ours, theirs in zip(asked, found, expected, strict=True):
        assert ours.logprobs is not None and theirs.logprobs is not None
        if not request.greedy:  # greedy choices are scored at temperature 1, as vLLM does it
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


async def test_replicas_answer_as_one_engine_does_also_when_one_goes_away(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    async with serving(model_app(ModelService(str(random_policy), **OPTIONS))) as url:
        async with Client(url) as client:
            served = await ask_what_is_served(client, None)
        expected = await _together(_client(url, codec, served), asked)
        staying = ModelService(str(random_policy), **OPTIONS)
        async with AsyncExitStack() as stack, serving(model_app(staying)) as other:
            going = ModelService(str(random_policy), **OPTIONS)
            gone = await stack.enter_async_context(serving(model_app(going)))
            tasks = _of_each([gone, other])
            named = [request._replace(opening=tasks[row // 3]) for row, request in enumerate(asked)]
            model = _client(gone, codec, served, other)
            assert [each.ids for each in await _together(model, named)] == [each.ids for each in expected]
            answered = [_samples(service) for service in (going, staying)]
            assert answered == [6, 6]
            await stack.aclose()
            assert [each.ids for each in await _together(model, named)] == [each.ids for each in expected]
            assert _samples(staying) == answered[1] + len(named)


def _of_each(urls: list[str]) -> list[str]:
    """Two tasks for each of the servers to which they belong."""
    names = [f"task-{number}" for number in range(100)]
    first = {name: min(urls, key=partial(rank, name)) for name in names}
    return [name for url in urls for name in [each for each in names if first[each] == url][:2]]


def _samples(service: ModelService) -> int:
    return int(
        service.metrics.registry.get_sample_value("scope_model_requests_total", {"status": "200"}) or 0
    )


async def test_other_weights_after_the_handshake_are_noticed(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    async with serving(model_app(ModelService(str(random_policy), **OPTIONS))) as url:
        model = _client(url, codec, Served("tiny", None, "0" * 12, 160))
        with pytest.raises(RunMismatchError, match=f"now serves weights {weights_hash(random_policy)}"):
            await model.generate(asked[0], ("key",))


async def test_a_client_that_goes_away_frees_its_slot(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    service = ModelService(str(random_policy), **(OPTIONS | {"slots": 1}))
    async with serving(model_app(service)) as url:
        model = _client(url, codec, Served("tiny", None, None, 160))
        calls = [asyncio.create_task(model.generate(each, (row,))) for row, each in enumerate(asked)]
        while service.engine.running + service.engine.waiting < len(calls):
            await asyncio.sleep(0)
        for call in calls[1:]:
            call.cancel()
        await calls[0]
        for _ in range(200):
            if service.engine.running + service.engine.waiting == 0:
                break
            await asyncio.sleep(0.01)
    assert service.engine.running + service.engine.waiting == 0


async def test_refusals_say_what_is_wrong(random_policy: Path, codec: ChatCodec) -> None:
    service = ModelService(str(random_policy), **OPTIONS, api_key="secret")
    async with serving(model_app(service)) as url, aiohttp.ClientSession() as http:

        async def status(body: object, key: str = "secret") -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(f"{url}/completions", json=body, headers=headers) as response:
                assert response.status == 200 or (await response.json())["error"]["message"]
                return response.status

        good = {"model": "tiny", "prompt": [1, 2], "max_tokens": 2}
        assert await status(good) == 200
        assert await status(good, key="wrong") == 401
        assert await status({**good, "model": "other"}) == 404
        assert await status({**good, "prompt": "text"}) == 400
        service.queue = 0
        assert await status(good) == 429
        service.draining = True
        assert await status(good) == 503
        async with http.get(url.replace("/v1", "/health")) as response:
            assert response.status == 503
        async with http.get(url.replace("/v1", "/metrics")) as response:
            text = await response.text()
    assert 'scope_model_requests_total{status="200"} 1.0' in text
    assert 'scope_model_tokens_total{direction="in"} 2.0' in text
    model = _client(url, codec, Served("tiny", None, None, 160))
    with pytest.raises(InferenceError, match="does not fit a context"):
        await model.generate(Generate(tuple([1] * 160), 5), ())


async def test_what_is_no_such_server_or_model_is_one_line(random_policy: Path) -> None:
    async with serving(model_app(ModelService(str(random_policy), **OPTIONS))) as url:
        outer = url.removesuffix("/v1")
        async with Client(url, retry_policy=HASTY) as client, Client(outer, retry_policy=HASTY) as root:
            with pytest.raises(ConfigError, match=r"does not serve other; it serves \['tiny'\]"):
                await ask_what_is_served(client, "other")
            with pytest.raises(ConfigError, match="lists no models"):
                await ask_what_is_served(root, None)
    async with Client("http://127.0.0.1:9/v1", retry_policy=HASTY) as client:
        with pytest.raises(InferenceError, match="see that the server runs"):
            await ask_what_is_served(client, None)


async def test_a_server_that_is_back_in_time_costs_no_turn_and_one_that_stays_away_is_told_once(
    random_policy: Path, codec: ChatCodec, asked: list[Generate]
) -> None:
    outages: list[InferenceError] = []
    async with serving(model_app(ModelService(str(random_policy), **OPTIONS))) as url:
        model = _client(url, codec, Served("tiny", None, None, 160), on_outage=outages.append)
        expected = await model.generate(asked[0], ("key", 0))
    waiting = asyncio.create_task(model.generate(asked[0], ("key", 0)))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with serving(
        model_app(ModelService(str(random_policy), **OPTIONS)), port=int(url.split(":")[2][:-3])
    ):
        assert await waiting == expected
    for _ in range(2):
        with pytest.raises(InferenceError, match="run the same command again"):
            await model.generate(asked[0], ("key", 0))
    assert len(outages) == 1


def test_the_command_serves_and_finishes_what_has_arrived_when_it_is_told_to_stop(
    random_policy: Path, codec: ChatCodec
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "scope_selfplay.cli", "serve-model", str(random_policy)]
    server = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE, text=True)
    try:
        _until(lambda: _get(f"http://127.0.0.1:{port}/health") == {"status": "ok"}, server)
        info = _get(f"http://127.0.0.1:{port}/info")
        assert info["weights"] == weights_hash(random_policy)
        body = {"prompt": list(codec.encode_prompt([Message("user", "a")])), "max_tokens": 300, "seed": 1}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps({**body, "return_token_ids": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            first = json.load(response)["choices"][0]["token_ids"]
            assert first
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert server.stderr is not None and f"weights {info['weights']}" in server.stderr.read()
    finally:
        server.kill()
        server.wait()


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)
    except OSError:
        return None


def _until(done: Callable[[], bool], server: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 120
    while not done():
        assert server.poll() is None and time.monotonic() < end
        time.sleep(0.2)
