"""A run whose retriever is a server: the same passages, the same index for good, and patience when it is down."""

import asyncio
from pathlib import Path

import pytest

from retrieval.build import build_bm25
from retrieval.client import bm25_searcher
from retrieval.corpus import read_documents
from scope_selfplay.base.errors import OutsideError, RunMismatchError
from scope_selfplay.base.values import Document, Passage
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.search.searcher import IndexRecord, Searcher, ask_retriever, open_retriever
from scope_selfplay.store.files import write_records
from scope_selfplay.store.folder import RunFolder
from tests.integration.retrieval.conftest import serve_folder
from tests.integration.serving.threads import in_thread

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def world() -> list[Document]:
    return embedded_documents(0, CorpusConfig(sample=200))


@pytest.fixture(scope="module")
def index(world: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `scope index build RUN/corpus.jsonl FOLDER` makes it."""
    folder = tmp_path_factory.mktemp("served")
    write_records(folder / "corpus.jsonl", world)
    build_bm25(read_documents(folder / "corpus.jsonl"), folder / "index")
    return folder / "index"


def _ask(searcher: Searcher, queries: list[str]) -> list[list[Passage]]:
    async def ask() -> list[list[Passage]]:
        return await asyncio.gather(*(searcher.search(query, 3) for query in queries))

    return asyncio.run(ask())


def _open(url: str, world: list[Document], folder: Path, outages: list[OutsideError]) -> Searcher:
    folder.mkdir(exist_ok=True)
    return open_retriever(SearchConfig(url=url, outage=2.0), world, RunFolder(folder), outages.append)


def test_a_served_index_of_the_corpus_gives_exactly_the_passages_of_the_one_in_process(
    world: list[Document], index: Path, tmp_path: Path
) -> None:
    queries = [f"{each.title} {each.text[:60]}" for each in world[:60]] + ["zzz", "river", "x " * 9000]
    here = bm25_searcher(world)
    with in_thread(serve_folder(index)) as url:
        known = asyncio.run(ask_retriever(SearchConfig(url=url), world, 8))
        assert (known.asked, known.found, known.is_same) == (8, 8, True) and known.record.rows == len(world)
        assert not asyncio.run(ask_retriever(SearchConfig(url=url), world[:200], 8)).is_same
        served = _open(url, world, tmp_path, [])
        for _ in range(2):  # a second event loop, as the next stage has one
            assert _ask(served, queries) == _ask(here, queries)
    record = IndexRecord.model_validate_json((tmp_path / "index.json").read_bytes())
    assert record.identity == served.identity and record.index_hash and record.corpus_hash

    # The same run goes on without the server, and is refused a corpus that has changed.
    assert open_retriever(SearchConfig(), world, RunFolder(tmp_path), print).identity == here.identity
    with pytest.raises(RunMismatchError, match="was made with"):
        open_retriever(SearchConfig(), world[1:], RunFolder(tmp_path), print)


ODD = [
    Document(id=each, title="Orsk", text=f"Text {row}.")
    for row, each in enumerate(("a/b c", "naïve#?%2F", "7"))
]


def test_whole_documents_come_over_http_as_in_this_process(tmp_path: Path) -> None:
    whole = "Text 0. Text 1. Text 2."
    build_bm25(ODD, tmp_path / "index")
    (tmp_path / "run").mkdir()
    with in_thread(serve_folder(tmp_path / "index")) as url:
        settings = SearchConfig(url=url, outage=60.0)
        served = open_retriever(settings, ODD, RunFolder(tmp_path / "run"), print)
        here = bm25_searcher(ODD)
        for _ in range(2):
            for each in ODD:
                found = asyncio.run(served.document(each.id))
                assert found == asyncio.run(here.document(each.id)) == each.model_copy(update={"text": whole})
        assert asyncio.run(served.document("no such/id")) is None
