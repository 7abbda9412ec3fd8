"""Real models sit the judge's exam: small ones are refused by name and figure, one of 1.5B may begin."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from tests.commands import ran
from tests.vllm.conftest import REPOSITORY, fetched_model, serving

pytestmark = pytest.mark.timeout(3600)


def _exam(name: str, folder: Path, judgements: int) -> tuple[int, dict[str, Any], str]:
    documents = REPOSITORY / "tests" / "fixtures" / "factbook" / "passages.jsonl"
    command = [sys.executable, "-m", "scope_selfplay.cli", "judge", "exam", "--pack", "small", "--json"]
    command += ["--documents", documents, "--judgements", judgements, "--out", folder / "exam"]
    command += ["--set", "judge.verdict=token", "--set", "judge.endpoint.context=4096"]
    with serving(fetched_model(name), folder, dtype="bfloat16") as url:
        done = ran(list(map(str, [*command, "--base-url", url])))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["small"]["questions"], done.stderr


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder-0.5b"])
def test_a_model_that_cannot_judge_is_refused_by_name_and_figure(name: str, tmp_path: Path) -> None:
    code, questions, said = _exam(name, tmp_path, 120)
    assert code == ExitCode.USER, said
    assert "the judge cannot answer" in said
    assert any(question in said for question in questions)


@pytest.mark.vllm
@pytest.mark.real_judge
def test_a_model_of_one_and_a_half_billion_may_begin(tmp_path: Path) -> None:
    code, questions, said = _exam("qwen2.5-coder-1.5b", tmp_path, 240)
    assert code == 0, said
    print(
        json.dumps(
            {name: {"order": each["order"], "right": each["right"]} for name, each in questions.items()}
        )
    )
    # One changed number or name is what a small judge overlooks.
    shares = questions["grade"]["shares"]
    bars = {"wrong": 0.97, "partial": 0.97, "padded": 0.97, "empty": 0.97, "altered": 0.7}
    found = {kind: shares[f"in order against {kind}"]["value"] for kind in bars}
    assert all(found[kind] >= bar for kind, bar in bars.items()), found
