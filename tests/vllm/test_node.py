"""A run on one machine whose Solver a real vLLM serves, on the CPU."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.real_vllm import engine_environment, engine_python
from scope_selfplay.base.values import Candidate
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.commands import ran
from tests.integration.controller.test_node import REPOSITORY, SHORT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
SERVED = (
    "cluster.solver.vllm=true",
    'cluster.solver.args=["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]',
)


def test_a_real_vllm_is_started_asked_and_ended_with_its_workers(tmp_path: Path) -> None:
    if not (python := engine_python()).exists():
        pytest.skip(f"{python} is absent: tests/vllm/setup.sh makes it (SCOPE_VLLM_VENV names another)")
    vllm = tmp_path / "vllm"
    vllm.write_text(f'#!/bin/sh\nshift\nexec {python} -m vllm.entrypoints.openai.api_server --model "$@"\n')
    vllm.chmod(0o755)
    policy = f"model.path={REPOSITORY / 'scope_selfplay' / 'embedded' / 'policy'}"
    config = ["--config", str(REPOSITORY / "k8s" / "runs" / "tiny" / "run.yaml")]
    environment = engine_environment() | {"PYTHONPATH": str(REPOSITORY)}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def run_in(root: Path, *given: str, options: Sequence[str] = ()) -> RunFolder:
        settings = [word for each in (*SHORT, "iterations=1", policy, *given) for word in ("--set", each)]
        scope = [sys.executable, "-m", "scope_selfplay", "run", "--root", str(root), *config, *options]
        done = ran([*scope, *settings], env=environment, timeout=1500)
        assert done.returncode == 0, done.stderr
        return RunFolder(root / "tiny")

    served = run_in(tmp_path / "node", *SERVED, options=["--gpus", "cpu:4"])
    assert "EngineCore" in (served.driver / "tiny-i01-solver.log").read_text()
    assert ran(["pgrep", "-f", str(tmp_path)]).stdout == ""
    alone = run_in(tmp_path / "alone", "judge.kind=lexical", "judge.endpoint={}")
    made = [read_records(run.stage(1, Stage.TASKS).candidates, Candidate) for run in (served, alone)]
    # What another engine samples differs; documents, their order, prompts and seeds do not.
    one, other = ([(each.provenance.document_id, each.provenance.seed) for each in found] for found in made)
    assert one[: len(other)] == other[: len(one)]
