"""A real vLLM on a CPU, in the environment that tests/vllm/setup.sh makes (SCOPE_VLLM_VENV names another)."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.scope_command import ROOT
from scope_selfplay.base.machine import free_port

FLAGS = (
    "--enforce-eager --max-num-seqs 16 --enable-prefix-caching"
    # vLLM 0.32 on a CPU dies where the prefill of a seeded request is cut ("CPU Generator does not use offset").
    " --no-enable-chunked-prefill --max-num-batched-tokens 16384"
)


def engine_python() -> Path:
    return Path(os.environ.get("SCOPE_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"


def engine_environment(*, cores: int = 1, cache: int = 1) -> dict[str, str]:
    """On so many cores, with so many GiB for keys and values."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(cache),
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(cores),
    }
    if cores > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    environment.pop("PYTHONPATH", None)
    return environment


@contextmanager
def served(
    model: Path,
    folder: Path,
    *,
    name: str | None = None,
    max_length: int = 4096,
    dtype: str = "float32",
    cores: int = 1,
    cache: int = 1,
) -> Iterator[str]:
    """The base URL of a vLLM that serves `model`, with its log in `folder`. Raises RuntimeError where it does not."""
    port = free_port()
    command = [engine_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", model, *FLAGS.split()]
    command += ["--dtype", dtype, "--max-model-len", max_length, "--host", "127.0.0.1", "--port", port]
    command += ["--served-model-name", name] if name else []
    log, environment = folder / "vllm.log", engine_environment(cores=cores, cache=cache)
    with log.open("wb") as output:
        server = subprocess.Popen(
            list(map(str, command)), stdout=output, stderr=output, env=environment, cwd=folder
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
    end = time.monotonic() + float(os.environ.get("SCOPE_VLLM_WAIT", "900"))
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    last = log.read_text(encoding="utf-8", errors="replace")[-3000:]
    raise RuntimeError(f"vLLM did not come up (exit code {server.poll()}, {log}):\n{last}")
