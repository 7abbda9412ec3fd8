"""The worker image has no torch: with its packages alone, stages B and D make what a run in one process makes."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra")

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from tests.commands import ran
from tests.extras import environment_of, requirements_of, site_of
from tests.integration.serving.test_run import SMALL, held_out_answers, served, what_came_out

pytestmark = pytest.mark.integration
__all__ = ["served"]


@pytest.fixture(scope="module")
def worker_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = requirements_of("worker")
    assert names.isdisjoint({"torch", "trl", "accelerate", "sentence-transformers"})
    return site_of(names, tmp_path_factory.mktemp("worker") / "site")


def _python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-S", *arguments], env=environment_of(site), timeout=240)


def test_stages_that_train_nothing_need_no_torch(
    in_one_process: Run, served: list[str], worker_site: Path, tmp_path: Path
) -> None:
    settings = [word for each in (*SMALL, *served) for word in ("--set", each)]
    where = ["--config", str(DEFAULT_CONFIG), "--root", str(tmp_path / "runs"), "--prompts", "/nowhere"]
    for job, iteration in (("make-tasks", "0"), ("compare", "0"), ("make-tasks", "1")):
        done = _python(worker_site, "-m", "jobs", job, *where, "--iteration", iteration, *settings)
        assert done.returncode == 0, done.stderr
    config = load_config(DEFAULT_CONFIG, [*SMALL, *served])
    run = open_run(config, tmp_path / "runs", Progress(), record=False)
    assert what_came_out(run) == what_came_out(in_one_process)
    assert held_out_answers(run) == held_out_answers(in_one_process)


@pytest.mark.parametrize(
    "program",
    [
        "import jobs.__main__, scope_selfplay.driver.loop, scope_selfplay.driver.api",
        "import scope_selfplay.report.app, scope_selfplay.rewards, math_verify",
        "import huggingface_hub; from scope_selfplay.inference.checkpoints import policy_path",
    ],
)
def test_what_else_the_worker_image_is_for_can_be_imported(worker_site: Path, program: str) -> None:
    done = _python(worker_site, "-c", f"{program}\nimport sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_the_retrievers_image_builds_and_serves_an_index(tmp_path: Path) -> None:
    names = requirements_of("retrieval")
    assert names.isdisjoint({"torch", "transformers", "sentence-transformers"})
    site = site_of(names, tmp_path / "site")
    (tmp_path / "corpus.jsonl").write_text(
        '{"id": "a", "title": "Ash", "text": "Ash trees stand in parks."}\n'
    )
    build = ["index", "build", str(tmp_path / "corpus.jsonl"), str(tmp_path / "index")]
    done = _python(site, "-m", "scope_selfplay.cli", *build)
    assert done.returncode == 0, done.stderr
    program = "import retrieval.server, retrieval.server, uvicorn, uvloop, httptools, faiss, onnxruntime"
    done = _python(site, "-c", program)
    assert done.returncode == 0, done.stderr
