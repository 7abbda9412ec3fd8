"""Runs among servers, also where one goes away, and stages of the worker image make what a run in one process makes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retrieval.build import build_bm25
from retrieval.client import bm25_searcher
from retrieval.corpus import read_documents
from retrieval.server import build_app
from retrieval.service import SearchService, ServiceSettings
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError, RunMismatchError, SearchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, Document, Passage, Role, RolloutStatus
from scope_selfplay.config.base import SearchConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.judge.served import lexical_app
from scope_selfplay.net.serve import serving
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.search.searcher import IndexRecord, Searcher, ask_retriever, open_retriever
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.clock import Clock
from tests.commands import ran
from tests.extras import environment_of, requirements_of, site_of
from tests.integration.retrieval.conftest import serve_app, serve_folder
from tests.integration.serving.threads import in_thread

SMALL = """
    model.processes=1 model.slots=16 corpus.sample=150 compare.tasks=6 challenger.freeze_after=0 solver.batch=1
    solver.max_response=160 tasks.target=3 tasks.max_candidates=16 tasks.rollouts=2 tasks.low=0 tasks.high=1
    tasks.in_flight=8
""".split()


def begun(root: Path, *settings: str, record: bool = True) -> Run:
    return open_run(load_config(DEFAULT_CONFIG, [*SMALL, *settings]), root, Progress(), record=record)


def run_stages(root: Path, *settings: str) -> Run:
    """Held-out tasks, their answers by S_0, and tasks of C_0 tried on S_0: all that frozen policies do."""
    run = begun(root, *settings)
    make_tasks(run, 0)
    compare(run, 0)
    make_tasks(run, 1)
    return run


def candidates(run: Run, iteration: int) -> list[tuple[object, ...]]:
    found = read_records(run.folder.stage(iteration, Stage.TASKS).candidates, Candidate)
    return [
        (each.id, each.status, each.reason, each.mean, each.rollout_ids, each.task and each.task.text)
        for each in found
    ]


def held_out_answers(run: Run) -> list[dict[str, object]]:
    """The rollouts of iteration 0, but for the name of the index: a served one has another than one in this process."""
    lines = run.folder.stage(0, Stage.COMPARE).rollouts.read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "index"} for line in lines]


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that those among servers must equal."""
    return run_stages(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def index(in_one_process: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `scope index build RUN/corpus.jsonl FOLDER` makes it."""
    folder = tmp_path_factory.mktemp("served") / "index"
    build_bm25(read_documents(in_one_process.folder.corpus), folder)
    return folder


@pytest.fixture(scope="module")
def served(index: Path) -> Iterator[list[str]]:
    """The settings of a run whose partners, retriever and judge are servers."""
    with ExitStack() as stack:
        retriever = stack.enter_context(in_thread(serve_folder(index)))
        judge = stack.enter_context(in_thread(serving(lexical_app())))
        model = stack.enter_context(in_thread(serving(model_app(ModelService("embedded", slots=16)))))
        yield [
            f"search.url={retriever}",
            "judge.kind=model",
            f"judge.endpoint.base_url={judge}",
            f"partners.challenger.base_url={model}",
            f"partners.solver.base_url={model}",
        ]


def assert_equal(run: Run, expected: Run) -> None:
    for iteration in (0, 1):
        assert candidates(run, iteration) == candidates(expected, iteration)
    assert held_out_answers(run) == held_out_answers(expected)


def test_a_run_among_servers_makes_the_candidates_of_a_run_in_one_process(
    in_one_process: Run, served: list[str], tmp_path: Path
) -> None:
    assert_equal(run_stages(tmp_path, *served), in_one_process)
    made = candidates(in_one_process, 0) + candidates(in_one_process, 1)
    assert len(made) > 8 and len({row[2] for row in made}) > 1
    assert RolloutStatus.FAILED.value not in str(held_out_answers(in_one_process))


def test_a_server_that_cannot_keep_turns_in_form_is_refused(served: list[str], tmp_path: Path) -> None:
    run = begun(tmp_path, *served, "partners.keep_form=[challenger]")
    with pytest.raises(ConfigError, match=r"partners.challenger: `scope serve-model` keeps no turn in form"):
        run.player(run.challenger(0), Role.CHALLENGER)


def test_the_worker_image_without_torch_makes_the_same(
    in_one_process: Run, served: list[str], tmp_path: Path
) -> None:
    names = requirements_of("worker")
    assert names.isdisjoint({"torch", "trl", "accelerate", "sentence-transformers"})
    site = site_of(names, tmp_path / "site")

    def python(*arguments: str) -> None:
        done = ran([sys.executable, "-S", *arguments], env=environment_of(site), timeout=240)
        assert done.returncode == 0, done.stderr

    settings = [word for each in (*SMALL, *served) for word in ("--set", each)]
    where = ["--config", str(DEFAULT_CONFIG), "--root", str(tmp_path / "runs"), "--prompts", "/nowhere"]
    for job, iteration in (("make-tasks", "0"), ("compare", "0"), ("make-tasks", "1")):
        python("-m", "jobs", job, *where, "--iteration", iteration, *settings)
    assert_equal(begun(tmp_path / "runs", *served, record=False), in_one_process)
    # What else the image is for.
    python(
        "-c",
        "import jobs.__main__, scope_selfplay.driver.kubernetes, scope_selfplay.driver.transport\n"
        "import scope_selfplay.report.app, scope_selfplay.rewards, math_verify, huggingface_hub, sys\n"
        "from scope_selfplay.inference.checkpoints import policy_path\n"
        "assert 'torch' not in sys.modules",
    )


def ask(searcher: Searcher, queries: list[str]) -> list[list[Passage]]:
    async def together() -> list[list[Passage]]:
        return await asyncio.gather(*(searcher.search(query, 3) for query in queries))

    return asyncio.run(together())


def test_a_served_index_of_the_corpus_gives_exactly_the_passages_of_the_one_in_process(
    in_one_process: Run, index: Path, tmp_path: Path
) -> None:
    world = read_records(in_one_process.folder.corpus, Document)
    queries = [f"{each.title} {each.text[:60]}" for each in world[:60]] + ["zzz", "river", "x " * 9000]
    here = bm25_searcher(world)
    with in_thread(serve_folder(index)) as url:
        settings = SearchConfig(url=url, outage=60.0)
        known = asyncio.run(ask_retriever(settings, world, 8))
        assert (known.asked, known.found, known.is_same) == (8, 8, True) and known.record.rows == len(world)
        assert not asyncio.run(ask_retriever(settings, world[:100], 8)).is_same
        served = open_retriever(settings, world, RunFolder(tmp_path), print)
        for _ in range(2):  # a second event loop, as the next stage has one
            assert ask(served, queries) == ask(here, queries)
    record = IndexRecord.model_validate_json((tmp_path / "index.json").read_bytes())
    assert record.identity == served.identity and record.index_hash and record.corpus_hash

    # The same run goes on without the server, and is refused a corpus that has changed.
    assert open_retriever(SearchConfig(), world, RunFolder(tmp_path), print).identity == here.identity
    with pytest.raises(RunMismatchError, match="was made with"):
        open_retriever(SearchConfig(), world[1:], RunFolder(tmp_path), print)


OUTAGE = 200.0


class Away:
    """A retriever that answers so many searches, and then nothing until an outage is over."""

    def __init__(self, app: Any, searches: int, clock: Clock) -> None:
        self._app, self._left, self._clock = app, searches, clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._left -= scope["path"] == "/retrieve"
        if self._left > 0:
            await self._app(scope, receive, send)
            return
        self._clock.skip(OUTAGE)
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@asynccontextmanager
async def goes_away(index: Path, clock: Clock) -> AsyncIterator[str]:
    service = SearchService(ServiceSettings(folder=index, workers=0))
    await service.load()
    try:
        async with serve_app(Away(build_app(service), 6, clock)) as url:  # type: ignore[arg-type]
            yield url
    finally:
        await service.close()


@pytest.mark.fault(5)
def test_a_retriever_that_stays_away_stops_the_stage_and_the_same_command_goes_on(
    in_one_process: Run, index: Path, tmp_path: Path, clock: Clock
) -> None:
    with in_thread(goes_away(index, clock)) as url:
        run = begun(tmp_path, f"search.url={url}", f"search.outage={OUTAGE}")
        make_tasks(run, 0)
        with pytest.raises(SearchError, match="see that the retriever runs, then run the same command again"):
            compare(run, 0)
    # The address may change, too: where the retriever is, is not what the run computes.
    with in_thread(serve_folder(index)) as url:
        compare(begun(tmp_path, f"search.url={url}"), 0)
    assert held_out_answers(run) == held_out_answers(in_one_process)


def test_whole_documents_come_over_http_as_in_this_process(tmp_path: Path) -> None:
    ids = ("a/b c", "naïve#?%2F", "7")
    odd = [Document(id=each, title="Orsk", text=f"Text {row}.") for row, each in enumerate(ids)]
    build_bm25(odd, tmp_path / "index")
    with in_thread(serve_folder(tmp_path / "index")) as url:
        served = open_retriever(SearchConfig(url=url, outage=60.0), odd, RunFolder(tmp_path), print)
        here = bm25_searcher(odd)
        for each in odd:
            found = asyncio.run(served.document(each.id))
            whole = each.model_copy(update={"text": "Text 0. Text 1. Text 2."})
            assert found == asyncio.run(here.document(each.id)) == whole
        assert asyncio.run(served.document("no such/id")) is None
