"""Plans: the volume of the paper's iteration comes out, memory and hours follow from named assumptions."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError, UserError
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.commands import PAPER as PAPERS
from scope_selfplay.plan.load import make_plan
from scope_selfplay.plan.size import Assumptions, model_size
from scope_selfplay.store.folder import Stage

PAPER = load_config(None, PAPERS)
QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def test_the_volume_of_one_iteration_is_that_of_the_paper() -> None:
    """SCOPE appendix G with four criteria; that 40 % are accepted, which no paper states, and stage D are ours."""
    plan = make_plan(PAPER, gates=2, assumptions=Assumptions())
    learning = {stage.stage: stage for stage in plan.stages if stage.stage is not Stage.COMPARE}
    assert learning[Stage.CHALLENGER].challenger_rollouts == 10_240
    assert [stage.solver_rollouts for stage in learning.values()] == [81_920, 51_200, 40_960]
    assert sum(stage.solver_rollouts for stage in learning.values()) == 174_080
    assert sum(stage.judge_calls for stage in learning.values()) == 765_440
    assert learning[Stage.TASKS].prompts == 12_800
    grades = 4 * sum(stage.solver_rollouts for stage in learning.values())
    assert grades / 765_440 > 0.9


def test_given_tasks_need_no_challenger_and_no_task_making() -> None:
    config = load_config(None, ["model.path=Qwen3-8B", "solver.tasks=x.jsonl"])
    plan = make_plan(config, gates=3, assumptions=Assumptions())
    assert [stage.stage for stage in plan.stages] == [Stage.SOLVER, Stage.COMPARE]


def test_hours_scale_with_the_model_and_fall_with_the_rates() -> None:
    whole = make_plan(PAPER, gates=2, assumptions=Assumptions(), parameters=8e9)
    half = make_plan(PAPER, gates=2, assumptions=Assumptions(), parameters=4e9)
    assert half.gpu_hours == pytest.approx(whole.gpu_hours / 2)
    faster = Assumptions(decode_rate=6000, prefill_rate=40_000, utilisation=0.7)
    half = make_plan(PAPER, gates=2, assumptions=faster, parameters=8e9)
    assert half.gpu_hours == pytest.approx(whole.gpu_hours / 2)


def test_sizes_come_from_the_model_its_name_or_the_user(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    size = model_size(str(tmp_path))
    assert size.parameters == pytest.approx(8.19e9, rel=0.002)
    assert size.cache_bytes == 147_456
    assert model_size("/models/Qwen3-8B-Base") == size._replace(found="the name Qwen3-8B-Base")
    assert model_size("/models/Mine-7B-Instruct").parameters == 7e9
    other = tmp_path / "Other-7B"
    other.mkdir()
    (other / "config.json").write_text('{"n_embd": 4096}')
    assert (model_size(str(other)).parameters, model_size(str(other)).found) == (7e9, "the name Other-7B")
    assert model_size("/models/mine", 3e9).parameters == 3e9
    with pytest.raises(ConfigError, match=r"/models/mine is not here and its name has no size such as 8B"):
        model_size("/models/mine")


def plan(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *words])


def test_the_command_prints_the_plan_as_text_and_as_data() -> None:
    text = plan("--paper")
    assert text.exit_code == 0 and "10,240" in text.stdout and "assumed: acceptance=0.4" in text.stdout
    assert max(len(line) for line in text.stdout.splitlines()[:16]) < 160
    data = json.loads(plan("--paper", "--json", "--assume", "acceptance=0.8").stdout)
    assert data["stages"][1]["prompts"] == 6400
    assert data["assumptions"]["acceptance"] == 0.8
    assert data["pods"][0]["host_parts"]["optimizer"] > 60 and data["stages"][0]["disk_gib"] > 250


def test_without_a_config_the_run_is_planned_that_scope_run_would_do() -> None:
    config = load_config(DEFAULT_CONFIG)
    data = json.loads(plan("--json").stdout)
    stages = {stage["stage"]: stage for stage in data["stages"]}
    assert data["iterations"] == config.iterations
    assert stages["challenger"]["prompts"] == config.challenger.steps * config.challenger.batch
    assert stages["solver"]["prompts"] == config.solver.steps * config.solver.batch
    text = plan().stdout
    assert "1.2 million parameters" in text and "GPU" not in text and "hours" not in text
    assert "documents: 640 and 160 for held-out" in text
    assert isinstance(plan("--paper", "--config", "x.yaml").exception, UserError)


def test_ones_own_documents_are_counted(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"Page {number} says enough to ask about. " * 9)
    settings = (
        "domain=wikipedia",
        f"corpus.path={tmp_path}",
        "challenger.max_prompt=4096",
        "compare.given=null",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    said = plan(*options).output
    assert "documents: 9; iteration 1 train the Challenger needs 60 and would find" in said
    found = json.loads(plan("--json", *options).stdout)
    assert found["documents"]["advice"].startswith("add ")
    away = plan("--set", "domain=wikipedia", "--set", "corpus.path=/data/none-such").output
    where = "/data/none-such is not on this machine and not counted"
    assert f"documents: 424 are needed if every one gives a task; {where}" in away
