"""What `pip install scope-selfplay` brings with and without an extra: how much it is, and what it can do alone."""

import importlib.metadata
import resource
import sys
from pathlib import Path

import pytest

from tests.commands import ran
from tests.extras import REPOSITORY, environment_of, requirements_of, site_of

PACKAGES, MEGABYTES = 35, 500
"""pyarrow, DuckDB, SciPy and NumPy are nine tenths of it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site_of(requirements_of(), tmp_path_factory.mktemp("base") / "site")


def scope(site: Path, *words: str | Path, folder: Path | None = None) -> tuple[int, str]:
    """The exit code and what stands on stderr."""
    command = [sys.executable, "-S", "-m", "scope_selfplay", *map(str, words)]
    done = ran(command, env=environment_of(site), cwd=folder)
    return done.returncode, done.stderr


def test_the_base_is_small() -> None:
    names = requirements_of()
    files = [file for name in names for file in importlib.metadata.distribution(name).files or []]
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    assert len(names) <= PACKAGES and size < MEGABYTES * 1e6


def test_its_help_takes_half_a_second_of_a_core(base: Path) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert scope(base, "--help") == (0, "")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.5 for _ in range(5))


def test_it_begins_a_domain_and_a_cluster_and_says_in_one_line_which_extra_a_run_needs(
    base: Path, tmp_path: Path
) -> None:
    tiny = REPOSITORY / "k8s" / "runs" / "tiny" / "setup" / "run.yaml"
    for command in ("prompts new mine", "prompts check", f"k8s render {tiny} --to .", "doctor"):
        code, said = scope(base, *command.split(), folder=tmp_path)
        assert code == 0, said
    code, said = scope(base, "run", "--set", "iterations=1", folder=tmp_path)
    needs = "scope: searching a run's documents needs bm25s: pip install 'scope-selfplay[local]'"
    assert (code, said.splitlines()[-1]) == (64, needs)
    assert "Traceback" not in said


def test_the_retrievers_extra_builds_and_serves_an_index(tmp_path: Path) -> None:
    names = requirements_of("retrieval")
    assert names.isdisjoint({"torch", "transformers", "sentence-transformers"})
    site = site_of(names, tmp_path / "site")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "title": "Ash", "text": "Ash trees stand in parks."}\n')
    code, said = scope(site, "index", "build", corpus, tmp_path / "index")
    assert code == 0, said
    program = "import retrieval.server, uvicorn, uvloop, httptools, faiss, onnxruntime"
    done = ran([sys.executable, "-S", "-c", program], env=environment_of(site))
    assert done.returncode == 0, done.stderr
