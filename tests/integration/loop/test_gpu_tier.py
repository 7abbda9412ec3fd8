"""What the GPU tier measures works: the same steps with real episodes, in a tiny shape on the CPU."""

import json
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")

from scope_selfplay.store import Stage
from tests.gpu.real_steps import RESULTS, TINY, measure, said, write_down, write_policy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.mark.parametrize("role", [Stage.CHALLENGER, Stage.SOLVER])
def test_a_measured_step_searches_learns_and_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Stage
) -> None:
    policy = write_policy(TINY, tmp_path / "policy", "cpu")
    found = measure(policy, TINY, role, "in_process", tmp_path / "runs")
    assert found.searches > 0 and 0 < found.outside < 1
    assert found.generated_per_second > 0 and found.trained_per_second > 0
    monkeypatch.setenv(RESULTS, str(tmp_path / "results.jsonl"))
    write_down(found, {"batch": TINY.batch})
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line) == {**found._asdict(), "batch": TINY.batch}
    assert found.machine in said(found) and "outside both" in said(found)
