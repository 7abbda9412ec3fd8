"""A corpus that a real model makes and a real judge judges, without training.

    python -m benchmarks.real_corpus [--model qwen2.5-coder-1.5b] [--root FOLDER] [--base-url URL] [--documents 60 40]

One model in all roles, served by a vLLM that is started here unless --base-url names one. So many passages of
`tests/fixtures/factbook`, drawn, and of `tests/fixtures/beagle` are the documents, with a candidate each. Killed at any
moment, the same command goes on.

    ROOT/corpus.jsonl   the documents
    ROOT/vllm.log       what the server said
    ROOT/corpus/        the run; its tasks, rubrics, answers and grades are those of iteration 0
    ROOT/report.html    what `scope report` makes of it
"""

import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from benchmarks.options import read_options
from benchmarks.scope_command import ROOT, run_scope
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.store.files import write_atomic

FIXTURES = ROOT / "tests" / "fixtures"
FLAGS = "--dtype bfloat16 --enforce-eager --max-model-len 4096 --max-num-seqs 16 --enable-prefix-caching"
# vLLM on a CPU dies where the prefill of a seeded request is cut.
FLAGS += " --no-enable-chunked-prefill --max-num-batched-tokens 16384"
PATIENCE = 900
"""Seconds until a server must answer."""


def main() -> None:
    place = ROOT / "bench-out" / "real-corpus"
    given = {"model": "qwen2.5-coder-1.5b", "root": place, "base_url": "", "documents": [60, 40]}
    options = read_options(__doc__, **given)
    root, model = options.root.resolve(), policy_path(options.model)
    root.mkdir(parents=True, exist_ok=True)
    documents = root / "corpus.jsonl"
    if not documents.exists():
        write_atomic(documents, "".join(drawn(*options.documents)))
    begun = time.monotonic()
    with nullcontext(options.base_url) if options.base_url else served(model, root / "vllm.log") as url:
        settings = [
            f"model.path={model}",
            f"corpus.path={documents}",
            f"compare.tasks={sum(options.documents)}",
        ]
        settings += [f"judge.endpoint.base_url={url}"]
        settings += [f"partners.{role}.base_url={url}" for role in ("challenger", "solver")]
        config = Path(__file__).with_name("run.yaml")
        command = ["run", "--config", str(config), "--root", str(root), "--name", "corpus"]
        run_scope([*command, *(f"--set={each}" for each in settings)], root / "run.log")
    run_scope(
        ["report", str(root / "corpus"), "--output", str(root / "report.html"), "--force"], root / "run.log"
    )
    print(f"{root / 'report.html'}: made in {(time.monotonic() - begun) / 60:.0f} minutes")


def drawn(facts: int, travels: int) -> list[str]:
    """Lines of both corpora."""
    first, second = (
        (FIXTURES / name / "passages.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        for name in ("factbook", "beagle")
    )
    return random.Random(5).sample(first, facts) + second[:travels]


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """The URL of a vLLM that serves `model`, in the environment of its tests (tests/vllm/setup.sh)."""
    python = Path(os.environ.get("SCOPE_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *FLAGS.split()]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_NO_USAGE_STATS": "1",
    }
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        environment.pop(name, None)
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"vLLM did not come up: see {log}")


if __name__ == "__main__":
    main()
