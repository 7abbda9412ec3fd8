import os
import subprocess
import sys
from pathlib import Path

from scope_selfplay.base.gates import DEFAULT_GATES, Gate
from scope_selfplay.base.values import Reason
from scope_selfplay.prompts.roles import CONTRACTS, PromptRole
from tests.unit import with_added_gate


def test_the_default_gates_are_the_papers() -> None:
    assert DEFAULT_GATES == (Gate.ENTITY, Gate.SOURCE)


def test_reason_and_prompt_role_follow_from_the_gate() -> None:
    assert [Reason.refused_by(gate).value for gate in Gate] == ["gate_entity", "gate_source", "gate_safety"]
    assert [PromptRole.of_gate(gate).file_name for gate in Gate] == [
        "gate_entity.md",
        "gate_source.md",
        "gate_safety.md",
    ]
    assert CONTRACTS[PromptRole.of_gate(Gate.SOURCE)].required == ("document", "task")
    assert list(Reason)[:6] == ["accepted", "no_task", "gate_entity", "gate_source", "gate_safety", "rubric"]


def test_a_gate_is_added_in_one_file_and_its_prompt(tmp_path: Path) -> None:
    program = [sys.executable, "-m", with_added_gate.__name__, tmp_path]
    done = subprocess.run(
        program,
        cwd=with_added_gate.REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(with_added_gate.REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "added"), done.stderr
