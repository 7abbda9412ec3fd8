import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette

from retrieval.build import build_bm25
from retrieval.server import build_app
from retrieval.service import SearchService, ServiceSettings
from scope_selfplay.base.values import Document
from scope_selfplay.net.serve import serving
from tests.world_data import write_world_data


@pytest.fixture(scope="session")
def quality_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real passages and questions where they are at hand (their licences keep them out of the repository), else the
    embedded world's in the same form.
    """
    real = Path(os.environ.get("SCOPE_SHARED", Path(__file__).parents[4] / "shared")) / "data"
    if (real / "passages.jsonl").is_file():
        return real
    return write_world_data(tmp_path_factory.mktemp("quality-world"))


@pytest.fixture(scope="session")
def towns() -> list[Document]:
    """500 towns, each found by its own number word."""
    return [
        Document(
            id=f"t{n}", title=f"Town {n}", text=f'The ""harbour"" of town{n} has {n} piers. Fish, wool, salt.'
        )
        for n in range(500)
    ]


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory, towns: list[Document]) -> Path:
    folder = tmp_path_factory.mktemp("towns")
    build_bm25(towns, folder)
    return folder


@asynccontextmanager
async def serve_app(app: Starlette) -> AsyncIterator[str]:
    """Any application on a free loopback port, for as long as the block lasts."""
    async with serving(app, finish=10) as url:
        yield url.removesuffix("/v1")


@asynccontextmanager
async def serve_folder(
    folder: Path, *, token: str | None = None, service: SearchService | None = None
) -> AsyncIterator[str]:
    service = service or SearchService(ServiceSettings(folder=folder, workers=0))
    await service.load()
    try:
        async with serve_app(build_app(service, token)) as url:
            yield url
    finally:
        await service.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session
