"""`make prove-gpu` in a tiny shape on the CPU: a part of each kind runs, and no part ends another."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")

from benchmarks.gpu import run_steps
from benchmarks.gpu.part import BY_NAME, PARTS, PartContext
from benchmarks.gpu.prove import PartLine, Status
from benchmarks.gpu.scales import TINY
from scope_selfplay.config.load import load_config
from scope_selfplay.store.files import check_lines, read_records
from tests.commands import ran
from tests.doc_commands import environment

PROVE = [sys.executable, "-m", "benchmarks.gpu.prove"]
TRIED = "solver-step sharded colocated adapter-step challenger-episodes-in-process".split()
"""One of each function; the other parts are the same of another role."""


def test_every_part_writes_its_line_in_order_and_only_those_with_vllm_are_skipped(tmp_path: Path) -> None:
    options = ["--tiny", "--minutes", "60", "--parts", ",".join(TRIED), "--folder", str(tmp_path / "work")]
    ended = ran([*PROVE, *options, "--results", str(tmp_path / "results.jsonl")], env=environment())
    assert ended.returncode == 0, ended.stderr
    check_lines(tmp_path / "results.jsonl", PartLine)
    lines = read_records(tmp_path / "results.jsonl", PartLine)
    assert [line.part for line in lines] == TRIED
    assert {BY_NAME[name].work.split(":")[1] for name in (*TRIED, "one-gpu")} == {
        part.work.split(":")[1] for part in PARTS
    }
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
    assert list((tmp_path / "work").iterdir()) == [], "weights are left behind"


def test_without_a_gpu_nothing_runs_and_that_is_no_failure(tmp_path: Path) -> None:
    command = [*PROVE, "--results", str(tmp_path / "results.jsonl")]
    ended = ran(command, env={**environment(), "CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 0
    assert ended.stderr.startswith("skipped: torch sees no NVIDIA GPU") and not list(tmp_path.iterdir())


def test_the_run_of_one_gpu_is_one_that_the_driver_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver itself on a CPU: tests/integration/controller/test_node.py."""
    asked: list[str] = []
    monkeypatch.setattr(run_steps, "run_scope", lambda command, log: asked.extend(command))
    run_steps.one_gpu(PartContext(TINY, tmp_path, tmp_path, tmp_path / "one-gpu.json"))
    assert asked[:1] == ["run"] and "--gpus" in asked
    given = [word.removeprefix("--set=") for word in asked if word.startswith("--set=")]
    assert load_config(None, given).solver.steps == 2


def test_the_page_has_every_part_in_order_with_its_time_and_what_it_proves() -> None:
    page = (Path(__file__).parents[3] / "docs" / "start" / "one-machine.md").read_text(encoding="utf-8")
    rows = [f"| `{part.name}` | {part.seconds} | {part.proves} |" for part in PARTS]
    assert "\n".join(rows) in page
