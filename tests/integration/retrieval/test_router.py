"""Shards behind a router answer like one index over all rows."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from retrieval.build import Recipe
from retrieval.build_dense import DenseBuild, build_dense
from retrieval.client import HttpSearcher
from retrieval.rendering import TokenCap
from retrieval.router import ShardConnections, ShardRouter
from retrieval.server import build_app
from retrieval.wire import Retrieval
from scope_selfplay.errors import RunMismatchError
from scope_selfplay.schemas import Document
from scope_selfplay.testing.random_encoder import write_random_encoder
from scope_selfplay.wire.json_client import RetryPolicy

from .conftest import Running, serve_app

pytestmark = pytest.mark.integration

HASTY = RetryPolicy(deadline=1.0, attempt=0.3, attempts=2, first_pause=0.01)
CUTS = ((0, 70), (70, 150), (150, 200))


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    draw = np.random.default_rng(3)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    texts = ["".join(draw.choice(draw.choice(letters, size=3), size=20)) for _ in range(200)]
    # The same text in two shards: equal scores, and the lower row must come first.
    texts[180] = texts[20]
    return [Document(id=f"d{row}", title="T", text=text) for row, text in enumerate(texts)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("shards")
    model = write_random_encoder(root / "model", np.random.default_rng(1), layers=1, hidden=32, heads=2)
    recipe = Recipe(
        profile="flat", source="x", source_bytes=1, encoder=str(model), family="e5", backend="onnx"
    )
    for name, first, end in [("whole", 0, 200), *((str(first), first, end) for first, end in CUTS)]:
        build_dense(documents[first:end], DenseBuild(root / name, recipe))
    return {name: root / name for name in ("whole", "0", "70", "150")}


@asynccontextmanager
async def routed(urls: list[str], **options: Any) -> AsyncIterator[str]:
    router = ShardRouter(urls, **options)
    try:
        await router.load()
        async with serve_app(build_app(router, options.get("token"))) as url:
            yield url
    finally:
        await router.close()


async def status_of(http: aiohttp.ClientSession, url: str, wanted: int) -> int:
    """The status of a GET, asked for up to five seconds until it is the wanted one."""
    for _ in range(250):
        async with http.get(url) as response:
            if response.status == wanted:
                break
        await asyncio.sleep(0.02)
    return response.status


async def test_shards_answer_like_one_index(
    running: Running, folders: dict[str, Path], documents: list[Document], http: aiohttp.ClientSession
) -> None:
    body = {"queries": [document.text for document in documents[:60]], "topk": 7, "return_scores": True}
    async with AsyncExitStack() as stack:
        whole, *shards = [await stack.enter_async_context(running(folder)) for folder in folders.values()]
        url = await stack.enter_async_context(routed(shards))
        answers = []
        for server in (whole, url):
            async with http.post(server + "/retrieve", data=json.dumps(body)) as response:
                answers.append((await response.json())["result"])
        for one, merged in zip(*answers, strict=True):
            assert [row["document"] for row in merged] == [row["document"] for row in one]
            assert [row["score"] for row in merged] == pytest.approx([row["score"] for row in one], abs=1e-5)
        async with HttpSearcher(url) as searcher:
            found = await searcher.search(documents[20].text, 2)
            assert {passage.id for passage in found} == {"d20", "d180"}
            assert searcher.info["rows"] == 200


async def test_a_missing_shard_fails_the_request_instead_of_thinning_the_corpus(
    running: Running, folders: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(running(folders["0"]))
        lost = AsyncExitStack()
        gone = await lost.enter_async_context(running(folders["70"]))
        url = await stack.enter_async_context(routed([kept, gone], retry_policy=HASTY))
        async with http.post(url + "/retrieve", json={"query": "abc"}) as response:
            assert response.status == 200
        await lost.aclose()
        async with http.post(url + "/retrieve", json={"query": "abc"}) as response:
            assert response.status == 503


async def test_a_fault_names_the_shards_url_in_the_log_alone(
    running: Running,
    folders: dict[str, Path],
    http: aiohttp.ClientSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with AsyncExitStack() as stack:
        lost = AsyncExitStack()
        gone = await lost.enter_async_context(running(folders["70"]))
        url = await stack.enter_async_context(routed([gone], retry_policy=HASTY))
        await lost.aclose()
        async with http.post(url + "/retrieve", json={"query": "abc"}) as response:
            assert response.status == 503
            assert await response.json() == {"error": "a shard does not answer"}
    assert gone in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "status", "said"),
    [
        ({"max_topk": 5}, 400, "topk is 7, expected a whole number from 1 to 5"),
        ({"max_response": 200}, 413, "the response has more than 200 bytes"),
    ],
)
async def test_what_a_shard_refuses_for_good_is_refused_for_good(
    running: Running,
    folders: dict[str, Path],
    http: aiohttp.ClientSession,
    limits: dict[str, int],
    status: int,
    said: str,
) -> None:
    """It was a 503, which clients try again."""
    async with AsyncExitStack() as stack:
        shard = await stack.enter_async_context(running(folders["0"]))
        strict = await stack.enter_async_context(running(folders["70"], limits=limits))
        url = await stack.enter_async_context(routed([shard, strict]))
        async with http.post(url + "/retrieve", json={"query": "abc", "topk": 7}) as response:
            assert response.status == status
            error = (await response.json())["error"]
    assert error.startswith(said)
    assert "http://" not in error


class Unhurried(ShardRouter):
    """Asks its shards only when it is let go."""

    go: asyncio.Event

    async def ask_shards(self, shards: ShardConnections, request: Retrieval) -> list[dict[str, Any]]:
        await self.go.wait()
        return await super().ask_shards(shards, request)


@asynccontextmanager
async def unhurried(shard: str, **options: Any) -> AsyncIterator[tuple[Unhurried, str]]:
    router = Unhurried([shard], **options)
    router.go = asyncio.Event()
    await router.load()
    try:
        async with serve_app(build_app(router)) as url:
            yield router, url
    finally:
        await router.close()


async def test_a_router_keeps_its_deadline(
    running: Running, folders: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    async with running(folders["0"]) as shard, unhurried(shard, deadline=0.05) as (router, url):
        async with http.post(url + "/retrieve", json={"query": "abc"}) as response:
            assert response.status == 504
        router.go.set()
        async with http.post(url + "/retrieve", json={"query": "abc"}) as response:
            assert response.status == 200


async def test_a_router_lets_no_request_in_while_its_shards_have_enough(
    running: Running, folders: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    async with running(folders["0"]) as shard, unhurried(shard, queue=2) as (router, url):

        async def ask(*queries: str) -> tuple[int, str | None]:
            async with http.post(url + "/retrieve", json={"queries": queries}) as response:
                return response.status, response.headers.get("Retry-After")

        single = asyncio.create_task(ask("abc"))
        while router.queries_at_shards < 1:
            await asyncio.sleep(0.01)
        large = asyncio.create_task(ask("abc", "abd", "abe"))
        while router.queries_at_shards < 4:
            await asyncio.sleep(0.01)
        assert await ask("one too many") == (429, "1")
        router.go.set()
        assert await asyncio.gather(single, large) == [(200, None)] * 2
        assert (await ask("room again"))[0] == 200


async def test_large_responses_are_merged_as_small_ones_are(
    running: Running, folders: dict[str, Path], documents: list[Document], http: aiohttp.ClientSession
) -> None:
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(running(folders[name])) for name in ("0", "70")]
        url = await stack.enter_async_context(routed(shards))

        async def ask(queries: list[str]) -> list[Any]:
            async with http.post(url + "/retrieve", json={"queries": queries, "topk": 10}) as response:
                return list((await response.json())["result"])

        queries = [document.text for document in documents[:30]]
        assert await ask(queries) == [(await ask([query]))[0] for query in queries]


async def test_after_a_reload_the_router_serves_the_shards_new_index(
    running: Running, folders: dict[str, Path], tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """The handshake was made once for the router's life: each later answer was 503 `now serves ...`."""
    headers = {"Authorization": "Bearer secret"}
    current = tmp_path / "current"
    current.symlink_to(folders["70"])

    async def ask(url: str) -> tuple[int, dict[str, Any]]:
        body = {"query": "abc", "topk": 100}
        async with http.post(url + "/retrieve", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def reload(url: str) -> int:
        async with http.post(url + "/reload", headers=headers) as response:
            return response.status

    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(running(folders["0"], token="secret"))
        changing = await stack.enter_async_context(running(current, token="secret"))
        options = {"token": "secret", "probe_seconds": 0.02, "retry_policy": HASTY}
        url = await stack.enter_async_context(routed([kept, changing], **options))
        current.unlink()
        current.symlink_to(folders["150"])
        assert await reload(changing) == 200
        assert (await ask(url))[0] == 503
        assert await status_of(http, url + "/readyz", 503) == 503
        assert await reload(url) == 200
        assert await status_of(http, url + "/readyz", 200) == 200
        status, answer = await ask(url)
        assert status == 200
        assert {int(row["id"][1:]) // 10 for row in answer["result"][0]} >= {15, 19}
        current.unlink()
        current.symlink_to(folders["0"])
        assert await reload(changing) == 200
        # Two shards of the same passages: refused, and what was served before stays.
        assert await reload(url) == 503
        async with http.get(url + "/info", headers=headers) as response:
            assert (await response.json())["rows"] == 120


async def test_requests_under_way_end_while_the_router_reloads(
    running: Running, folders: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(running(folders[name])) for name in ("0", "70")]
        router = ShardRouter(shards)
        await router.load()
        url = await stack.enter_async_context(serve_app(build_app(router)))

        async def ask(number: int) -> int:
            async with http.post(url + "/retrieve", json={"query": f"abc {number}"}) as response:
                return response.status

        asked = [asyncio.create_task(ask(number)) for number in range(40)]
        for _ in range(3):
            await router.load()
        assert await asyncio.gather(*asked) == [200] * 40
        await router.close()


async def test_a_router_is_ready_only_while_every_shard_is(
    running: Running, folders: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(running(folders["0"]))
        lost = AsyncExitStack()
        gone = await lost.enter_async_context(running(folders["70"]))
        url = await stack.enter_async_context(routed([kept, gone], probe_seconds=0.02))
        assert await status_of(http, url + "/readyz", 200) == 200
        await lost.aclose()
        assert await status_of(http, url + "/readyz", 503) == 503
        port = int(gone.rpartition(":")[2])
        await stack.enter_async_context(running(folders["70"], port=port))
        assert await status_of(http, url + "/readyz", 200) == 200


async def test_merged_answers_keep_the_token_cap(
    running: Running, folders: dict[str, Path], documents: list[Document], http: aiohttp.ClientSession
) -> None:
    tokenizer = folders["whole"].parent / "model" / "tokenizer.json"
    body = {"queries": [documents[20].text, documents[90].text], "topk": 5, "max_tokens": 60}
    async with AsyncExitStack() as stack:
        whole = await stack.enter_async_context(running(folders["whole"], tokenizer=tokenizer))
        shards = [await stack.enter_async_context(running(folders[name])) for name in ("0", "70", "150")]
        url = await stack.enter_async_context(routed(shards, tokenizer=tokenizer))
        without = await stack.enter_async_context(routed(shards))
        answers = []
        for server in (whole, url):
            async with http.post(server + "/retrieve", json=body) as response:
                answers.append((await response.json())["result"])
        async with http.post(without + "/retrieve", json=body) as response:
            assert response.status == 400
            assert "--tokenizer" in (await response.json())["error"]
    assert answers[0] == answers[1]
    cap = TokenCap(tokenizer)
    for rows in answers[1]:
        assert 0 < sum(cap.count(row["contents"]) for row in rows) <= 60


async def test_shards_that_do_not_belong_together_are_refused(
    running: Running, folders: dict[str, Path], index_folder: Path
) -> None:
    async with AsyncExitStack() as stack:
        dense = await stack.enter_async_context(running(folders["0"]))
        words = await stack.enter_async_context(running(index_folder))
        for urls, message in (([words], "BM25"), ([dense, dense], "same passages")):
            with pytest.raises(RunMismatchError, match=message):
                async with routed(urls):
                    pass


class CountedSearcher(HttpSearcher):
    left = 0

    async def __aexit__(self, *ending: Any) -> None:
        self.left += 1


async def test_a_closing_that_is_cut_short_still_leaves_the_shards() -> None:
    searcher = CountedSearcher("http://127.0.0.1:1")
    shards = ShardConnections([searcher], {"identity": "router-1"})
    with shards.request():
        closing = asyncio.create_task(shards.close())
        await asyncio.sleep(0)
        assert not searcher.left
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled() and searcher.left == 1
