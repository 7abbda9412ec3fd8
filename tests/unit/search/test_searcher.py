"""The index belongs to the run: what counts as the same, and what is refused."""

import asyncio
import threading
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ConfigError, RecordError, RunMismatchError, SearchError
from scope_selfplay.base.values import Document
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.search.searcher import IndexRecord, open_retriever
from scope_selfplay.store.folder import RunFolder
from tests.engines import served

HERE = IndexRecord(identity="bm25-c", kind="bm25", rows=2, corpus_hash="c")
SERVED = IndexRecord(identity="bm25-i-c", kind="bm25", rows=2, corpus_hash="c", index_hash="i")
REBUILT = SERVED.model_copy(update={"identity": "bm25-j-c", "index_hash": "j"})
DOCUMENTS = [Document(id="a", title="Heron", text="A bird."), Document(id="b", title="Carp", text="A fish.")]


def quiet(fault: object) -> None: ...


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (HERE, HERE, True),
        (HERE, SERVED, True),
        (HERE, REBUILT, True),
        (SERVED, REBUILT, False),
        (HERE, HERE.model_copy(update={"identity": "bm25-d", "corpus_hash": "d"}), False),
        (HERE, SERVED.model_copy(update={"identity": "dense-i-c", "kind": "dense"}), False),
        (HERE, IndexRecord(identity="bm25-x"), False),
    ],
)
def test_bm25_over_an_equal_corpus_is_the_same_wherever_it_runs_and_two_builds_that_differ_are_two(
    one: IndexRecord, other: IndexRecord, same: bool
) -> None:
    assert one.equals(other) is other.equals(one) is same


def test_a_run_keeps_the_index_that_it_searched_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    searcher = open_retriever(SearchConfig(), DOCUMENTS, folder, quiet)
    record = IndexRecord.model_validate_json(folder.index.read_bytes())
    assert (record.identity, record.kind, record.rows) == (searcher.identity, "bm25", 2)
    assert len(record.corpus_hash) == 64
    assert open_retriever(SearchConfig(), DOCUMENTS, folder, quiet).identity == searcher.identity
    with pytest.raises(RunMismatchError, match=r"1\), .* was made with bm25-\w+ \(2|\(1 passages\)"):
        open_retriever(SearchConfig(), DOCUMENTS[:1], folder, quiet)
    folder.index.write_text("{")
    with pytest.raises(RecordError, match=r"index\.json: damaged"):
        open_retriever(SearchConfig(), DOCUMENTS, folder, quiet)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, r"status 401.*search\.api_key_env"),
        (403, r"status 403.*search\.api_key_env"),
        (404, r"status 404.*scope serve-retriever"),
    ],
)
def test_a_server_that_refuses_is_the_settings_fault(tmp_path: Path, status: int, said: str) -> None:
    with served(lambda *_: (status, {})) as url, pytest.raises(ConfigError, match=said):
        open_retriever(SearchConfig(url=url), DOCUMENTS, RunFolder(tmp_path), quiet)


@pytest.mark.fault(5)
def test_a_retriever_that_hangs_is_waited_for_no_longer_than_an_outage(tmp_path: Path) -> None:
    closing = threading.Event()

    with served(lambda *_: (200, closing.wait(60))) as url:
        settings = SearchConfig(url=url, outage=2.0)
        with pytest.raises(SearchError, match=r"no answer within 2 s.*run the same command"):
            open_retriever(settings, DOCUMENTS, RunFolder(tmp_path), quiet)
        closing.set()


def test_a_run_says_once_that_its_retriever_does_not_answer_and_once_that_it_does(tmp_path: Path) -> None:
    statuses, said = [200, 503, 503, 200], list[str]()

    def restarting(method: str, path: str, body: object) -> tuple[int, object]:
        if method == "GET":
            return 200, {"identity": "mine"}
        return statuses.pop(0), {"result": [[]]}

    with served(restarting) as url:
        settings = SearchConfig(url=url, outage=60.0)
        searcher = open_retriever(settings, DOCUMENTS, RunFolder(tmp_path), quiet, said.append)
        assert asyncio.run(searcher.search("heron", 3)) == [] and statuses == []
    first, second = said
    assert "status 503" in first and "(since " in first and "asking again for up to 60 s" in first
    assert second.startswith(url) and "answers again, after" in second
