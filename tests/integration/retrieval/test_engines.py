"""A run searches passages in somebody else's engine: Qdrant itself, Elasticsearch as recorded."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError, RunMismatchError, SearchError
from scope_selfplay.base.values import Document, Passage
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.search.engines import open_query_encoder
from scope_selfplay.search.searcher import IndexRecord, Searcher, open_retriever
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.random_encoder import write_random_encoder
from tests.clock import Clock
from tests.engines import LocalQdrant, RecordedElasticsearch, Row, basic, served

ROWS = [
    {
        "id": "a",
        "title": "Orsk",
        "text": "Orsk is a town below a dam.",
        "whole": "Orsk is a town. All of it.",
    },
    {"id": "b", "title": "Verrin", "text": "A city by the sea.", "whole": "Verrin, all of it."},
    {"id": "c", "title": "Aldmoor", "text": "Founded by people of Orsk.", "whole": "Aldmoor, all of it."},
    {"id": "d'e", "title": None, "text": "A heron without a title.", "whole": "A heron."},
]
MORE = [{"id": "z", "title": "Later", "text": "Another passage.", "whole": "Later."}]
DOCUMENTS = [Document(id=row["id"], title=row["title"] or "", text=row["text"]) for row in ROWS]


@dataclass(frozen=True)
class Engine:
    settings: dict[str, Any]
    """Of `search`."""
    add: Callable[[Sequence[Row]], None]
    first_id: str

    def open(self, folder: Path, **changes: Any) -> Searcher:
        engine = self.settings["engine"] | changes.pop("engine", {})
        settings = SearchConfig.model_validate({**self.settings, "outage": 5.0, **changes, "engine": engine})
        folder.mkdir(exist_ok=True)
        return open_retriever(settings, DOCUMENTS, RunFolder(folder), lambda fault: None)


def elasticsearch(
    url: str, name: str = "elasticsearch", add: Callable[[Sequence[Row]], None] = print
) -> Engine:
    return Engine({"url": url, "engine": {"name": name, "index": "wiki"}}, add, "a")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder") / "tiny-e5"
    return str(write_random_encoder(folder, layers=1, hidden=32, heads=2))


@pytest.fixture(params=["elasticsearch", pytest.param("qdrant", marks=pytest.mark.engines)])
def engine(request: pytest.FixtureRequest, encoder: str) -> Iterator[Engine]:
    """OpenSearch is asked as Elasticsearch is, but for its key."""
    if request.param == "elasticsearch":
        recorded = RecordedElasticsearch(ROWS)
        with served(recorded) as url:
            yield elasticsearch(url, add=recorded.rows.extend)
        return
    pytest.importorskip("qdrant_client", reason="Qdrant's local mode needs qdrant-client")
    queries = open_query_encoder(encoder)[0].queries
    local = LocalQdrant(ROWS, lambda query: queries([query])[0].tolist())
    with served(local) as url:
        settings = {"name": "qdrant", "index": "wiki", "encoder": encoder}
        yield Engine({"url": url, "engine": settings}, local.add, "0")


def found(searcher: Searcher, query: str, topk: int = 3) -> list[Passage]:
    return asyncio.run(searcher.search(query, topk))


def whole(searcher: Searcher, passage_id: str) -> Document | None:
    return asyncio.run(searcher.document(passage_id))


def test_passages_come_best_first_with_title_and_text_and_whole_from_their_field(
    engine: Engine, tmp_path: Path
) -> None:
    searcher = engine.open(tmp_path / "run", engine={"fields": {"document": "whole"}})
    passages = found(searcher, "Orsk is a town below a dam.", 2)
    assert (passages[0].id, passages[0].title, passages[0].text) == (engine.first_id, "Orsk", ROWS[0]["text"])
    assert len(passages) == 2 and passages[0].score > passages[1].score
    shown = whole(searcher, engine.first_id)
    assert shown is not None and (shown.title, shown.text) == ("Orsk", "Orsk is a town. All of it.")
    record = IndexRecord.model_validate_json((tmp_path / "run" / "index.json").read_bytes())
    assert (record.kind, record.rows) == (engine.settings["engine"]["name"], 4)
    assert record.identity == searcher.identity
    # In the usual field, a row without a title.
    passage = found(engine.open(tmp_path / "other"), "A heron without a title.", 1)[0]
    assert (passage.title, passage.text) == ("", "A heron without a title.")
    heron = whole(searcher, passage.id)
    assert heron is not None and heron.text == "A heron."


QUERIES = [
    *("!!!", 'a AND "b OR (', "{'$gt': 1}", "*:*", "../", "岩"),
    *("orsk " * 3000, "x." * 3000, "\ud800 orsk", "\x00orsk"),
]


def test_no_query_is_a_fault_and_no_id_opens_what_it_does_not_name(engine: Engine, tmp_path: Path) -> None:
    searcher = engine.open(tmp_path / "run")
    for query in QUERIES:
        assert len(found(searcher, query)) <= 3, query
    for asked in ("zzz", "' OR '1'='1", "-1", str(1 << 64), "a/../b?x=1", "\ud800", "*"):
        assert whole(searcher, asked) is None, asked


def test_a_run_goes_on_over_the_same_rows_only(engine: Engine, tmp_path: Path) -> None:
    searcher = engine.open(tmp_path / "run")
    assert engine.open(tmp_path / "run").identity == searcher.identity
    engine.add(MORE)
    with pytest.raises(RunMismatchError, match=r"\(5 passages\), .* was made with"):
        engine.open(tmp_path / "run")
    # A step of a training begins a loop of its own, which asks again what is served.
    with pytest.raises(RunMismatchError, match="serve that index, or start a new run"):
        found(searcher, "Orsk")


@pytest.mark.parametrize(
    ("name", "key", "authorization"),
    [
        ("elasticsearch", "bXlrZXk=", "ApiKey bXlrZXk="),
        ("elasticsearch", "me:secret", basic("me:secret")),
        ("opensearch", "me:secret", basic("me:secret")),
        ("opensearch", "token", "Bearer token"),
    ],
)
def test_each_engine_gets_its_kind_of_key(
    name: str, key: str, authorization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(RecordedElasticsearch(ROWS), authorization=authorization) as url:
        engine = elasticsearch(url, name)
        with pytest.raises(ConfigError, match=r"search\.api_key_env"):
            engine.open(tmp_path / "run")
        monkeypatch.setenv("ENGINE_KEY", key)
        assert found(engine.open(tmp_path / "run", api_key_env="ENGINE_KEY"), "Orsk")


async def test_an_engine_that_goes_away_is_an_outage(tmp_path: Path, clock: Clock) -> None:
    with served(RecordedElasticsearch(ROWS)) as url:
        opened = partial(elasticsearch(url).open, tmp_path / "run", outage=200.0)
        searcher = await asyncio.to_thread(opened)
    searching = asyncio.create_task(searcher.search("Orsk", 3))
    while not searching.done():
        await asyncio.sleep(0.1)
        clock.skip(200.0)
    with pytest.raises(SearchError, match=r"gave up after .* run the same command again"):
        await searching


@pytest.mark.parametrize("answer", [{"hits": {}}, {"hits": {"hits": [{"_id": 1}]}}, {"hits": {"hits": [7]}}])
def test_an_answer_of_another_shape_is_a_fault_and_no_empty_result(answer: Any, tmp_path: Path) -> None:
    recorded, broken = RecordedElasticsearch(ROWS), list[bool]()
    with served(
        lambda *asked: (200, answer) if broken and "_search" in asked[1] else recorded(*asked)
    ) as url:
        searcher = elasticsearch(url).open(tmp_path / "run")
        broken.append(True)
        with pytest.raises(SearchError, match="another shape"):
            found(searcher, "Orsk")


@pytest.mark.engines
def test_elasticsearch_is_asked_what_its_official_client_asks(tmp_path: Path) -> None:
    official = pytest.importorskip("elasticsearch", reason="needs the package elasticsearch")
    recorded = RecordedElasticsearch(ROWS)
    with served(recorded) as url:
        ours = found(elasticsearch(url).open(tmp_path / "run"), "Orsk town")
        asked = recorded.asked[-1]
        with official.Elasticsearch(url) as client:
            asking = {"query": "Orsk town", "fields": ["title", "text"], "type": "cross_fields"}
            query = {"multi_match": asking}
            theirs = client.search(index="wiki", query=query, size=3, allow_partial_search_results=False)
            assert recorded.asked[-1] == asked
            assert client.count(index="wiki")["count"] == 4
            assert list(client.indices.get_settings(index="wiki")) == ["wiki-2026"]
    assert [passage.id for passage in ours] == [hit["_id"] for hit in theirs["hits"]["hits"]]
