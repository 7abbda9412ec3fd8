"""Everything that may be served is: partners, retriever and judge. The run makes the same candidates."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra")

from retrieval.build import build_bm25
from retrieval.corpus import read_documents
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, RolloutStatus
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.read import read_documents as read_corpus
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.judge.served import lexical_app
from scope_selfplay.net.serve import serving
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from tests.integration.retrieval.conftest import serve_folder
from tests.integration.serving.threads import in_thread

pytestmark = pytest.mark.integration

SMALL = """
    model.processes=1 model.slots=16 corpus.sample=150 compare.tasks=6 challenger.freeze_after=0 solver.batch=1
    solver.max_response=160 tasks.target=3 tasks.max_candidates=16 tasks.rollouts=2 tasks.low=0 tasks.high=1
    tasks.in_flight=8
""".split()


def run_stages(root: Path, *settings: str) -> Run:
    """Held-out tasks, their answers by S_0, and tasks of C_0 tried on S_0: all that frozen policies do."""
    run = open_run(load_config(DEFAULT_CONFIG, [*SMALL, *settings]), root, Progress())
    make_tasks(run, 0)
    compare(run, 0)
    make_tasks(run, 1)
    return run


def what_came_out(run: Run) -> list[tuple[object, ...]]:
    candidates = [
        each
        for iteration in (0, 1)
        for each in read_records(run.folder.stage(iteration, Stage.TASKS).candidates, Candidate)
    ]
    return [
        (each.id, each.status, each.reason, each.mean, each.rollout_ids, each.task and each.task.text)
        for each in candidates
    ]


def held_out_answers(run: Run) -> list[dict[str, object]]:
    """The rollouts of iteration 0, but for the name of the index: a served one has another than one in this process."""
    lines = run.folder.stage(0, Stage.COMPARE).rollouts.read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "index"} for line in lines]


@pytest.fixture
def served(in_one_process: Run, tmp_path: Path) -> Iterator[list[str]]:
    """The settings of a run whose partners, retriever and judge are servers."""
    corpus = in_one_process.folder.corpus
    build_bm25(read_documents(corpus), tmp_path / "index")
    service = ModelService("embedded", slots=16)
    with ExitStack() as stack:
        retriever = stack.enter_context(in_thread(serve_folder(tmp_path / "index")))
        judge = stack.enter_context(in_thread(serving(lexical_app(read_corpus(corpus)))))
        model = stack.enter_context(in_thread(serving(model_app(service))))
        yield [
            f"search.url={retriever}",
            "judge.kind=model",
            f"judge.endpoint.base_url={judge}",
            f"partners.challenger.base_url={model}",
            f"partners.solver.base_url={model}",
        ]


def test_a_run_among_servers_makes_the_candidates_of_a_run_in_one_process(
    in_one_process: Run, served: list[str], tmp_path: Path
) -> None:
    run = run_stages(tmp_path, *served)
    found, expected = what_came_out(run), what_came_out(in_one_process)
    assert found == expected
    assert len(expected) > 8 and len({row[2] for row in expected}) > 1
    answers = held_out_answers(run)
    assert answers == held_out_answers(in_one_process)
    assert RolloutStatus.FAILED.value not in str(answers)
