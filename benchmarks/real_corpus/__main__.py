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

import random
import time
from contextlib import nullcontext
from pathlib import Path

from benchmarks.options import read_options
from benchmarks.real_vllm import served
from benchmarks.scope_command import ROOT, run_scope
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.store.files import write_atomic

FIXTURES = ROOT / "tests" / "fixtures"


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
    own = served(model, root, dtype="bfloat16", cores=2, cache=4)
    with nullcontext(options.base_url) if options.base_url else own as url:
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


if __name__ == "__main__":
    main()
