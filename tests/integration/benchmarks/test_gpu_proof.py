"""`make prove-gpu` in a tiny shape on the CPU: every part that needs no vLLM runs, and no part ends another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")

from benchmarks.gpu.part import BY_NAME, PARTS
from benchmarks.gpu.prove import PartLine, Status
from scope_selfplay.store.files import check_lines, read_records

PROVE = [sys.executable, "-m", "benchmarks.gpu.prove"]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole proof, which worked in `work` and wrote `results.jsonl`."""
    folder = tmp_path_factory.mktemp("proof")
    options = [
        "--tiny",
        "--minutes",
        "60",
        "--results",
        str(folder / "results.jsonl"),
        "--folder",
        str(folder / "work"),
    ]
    ended = subprocess.run([*PROVE, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_every_part_writes_its_line_in_order_and_only_those_with_vllm_are_skipped(proof: Path) -> None:
    check_lines(proof / "results.jsonl", PartLine)
    lines = read_records(proof / "results.jsonl", PartLine)
    assert [line.part for line in lines] == [part.name for part in PARTS]
    for line in lines:
        if "vllm" in BY_NAME[line.part].packages:
            assert line.status is Status.SKIPPED
            assert line.reason in (
                "needs vllm, not installed here",
                "vLLM beside a trainer needs an NVIDIA GPU",
            )
        else:
            assert (line.status, line.reason) == (Status.OK, None)
            assert line.figures
        assert line.machine.endswith("CPU") and {"torch", "trl", "python"} <= set(line.versions)
    assert list((proof / "work").iterdir()) == [], "weights are left behind"


def test_without_a_gpu_nothing_runs_and_that_is_no_failure(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [*PROVE, "--results", str(tmp_path / "results.jsonl")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr.startswith("skipped: torch sees no NVIDIA GPU") and not list(tmp_path.iterdir())


def test_the_page_has_every_part_in_order_with_its_time_and_what_it_proves() -> None:
    page = (Path(__file__).parents[3] / "docs" / "start" / "one-machine.md").read_text(encoding="utf-8")
    rows = [f"| `{part.name}` | {part.seconds} | {part.proves} |" for part in PARTS]
    assert "\n".join(rows) in page
