"""A stage whose retriever goes away: for a while costs time, for too long costs a second command; never a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the train extra")

from retrieval.build import build_bm25
from retrieval.corpus import read_documents
from retrieval.server import build_app
from retrieval.service import SearchService, ServiceSettings
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import SearchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, Reason, Rollout, RolloutStatus
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from tests.integration.retrieval.conftest import serve_app
from tests.integration.serving.threads import in_thread

pytestmark = pytest.mark.integration

SMALL = "model.processes=1 compare.given=null compare.tasks=8 tasks.in_flight=4 corpus.sample=60".split()


class Away:
    """A retriever that answers `before` searches, is away for `seconds`, and comes back."""

    def __init__(self, app: Any, *, before: int, seconds: float) -> None:
        self._app, self._before, self._seconds = app, before, seconds
        self.refused = 0
        self._until: float | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        now = asyncio.get_running_loop().time()
        if scope["path"] == "/retrieve":
            self._before -= 1
            if self._before == 0:
                self._until = now + self._seconds
        if self._until is None or now >= self._until:
            await self._app(scope, receive, send)
            return
        self.refused += 1
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@asynccontextmanager
async def _serving(index: Path, away: list[Away], *, before: int, seconds: float) -> AsyncIterator[str]:
    service = SearchService(ServiceSettings(folder=index, workers=0))
    await service.load()
    away.append(Away(build_app(service), before=before, seconds=seconds))
    try:
        async with serve_app(away[0]) as url:  # type: ignore[arg-type]
            yield url
    finally:
        await service.close()


def _held_out(root: Path, *settings: str) -> Run:
    run = open_run(load_config(DEFAULT_CONFIG, [*SMALL, *settings]), root, Progress())
    make_tasks(run, 0)
    return run


def _candidates(run: Run) -> list[tuple[str, Reason]]:
    found = read_records(run.folder.stage(0, Stage.TASKS).candidates, Candidate)
    return [(each.id, each.reason) for each in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _held_out(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def index(undisturbed: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    build_bm25(read_documents(undisturbed.folder.corpus), folder)
    return folder


@pytest.mark.fault(5)
def test_a_retriever_that_is_away_for_a_while_changes_no_task(
    undisturbed: Run, index: Path, tmp_path: Path
) -> None:
    away: list[Away] = []
    with in_thread(_serving(index, away, before=6, seconds=2.0)) as url:
        run = _held_out(tmp_path, f"search.url={url}")
    assert away[0].refused > 2
    assert _candidates(run) == _candidates(undisturbed)
    assert all(
        each.status is not RolloutStatus.FAILED
        for each in read_records(run.folder.stage(0, Stage.TASKS).rollouts, Rollout)
    )


@pytest.mark.fault(5)
def test_a_retriever_that_stays_away_stops_the_stage_and_the_same_command_goes_on(
    undisturbed: Run, index: Path, tmp_path: Path
) -> None:
    away: list[Away] = []
    with in_thread(_serving(index, away, before=6, seconds=1e9)) as url:
        settings = (f"search.url={url}", "search.outage=0.5")
        with pytest.raises(SearchError, match="see that the retriever runs, then run the same command again"):
            _held_out(tmp_path, *settings)
        kept = read_records(tmp_path / "demo" / "iteration-00" / "tasks" / "candidates.jsonl", Candidate)
        assert not any(each.reason is Reason.SEARCH_FAILED for each in kept)
    # The address may change, too: where the retriever is, is not what the run computes.
    with in_thread(_serving(index, [], before=0, seconds=0)) as url:
        assert _candidates(_held_out(tmp_path, f"search.url={url}")) == _candidates(undisturbed)
