"""The run folders have the numbers of their papers: SCOPE (Table 9, appendices E and G), Reasoning Arena (appendix B),
Tournament-GRPO (table 4), ArenaRL (sections 4.2 and 6, appendix A)."""

from pathlib import Path

import pytest

from scope_selfplay.config.base import OpenConfig, ToolConfig
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.config.rewards import LiveReward
from scope_selfplay.config.run import RunConfig
from scope_selfplay.training.loss import loss_of

RUNS = Path(__file__).parents[2] / "k8s" / "runs"
FAMILIES = {"qwen3-8b": "qwen3", "qwen2.5-7b": "qwen2.5", "olmo-3-7b": "olmo3"}

# What a method is made of; model, corpus, judge's place and cluster are a run's own.
METHOD = ("search", "sampling", "challenger", "tasks", "solver", "compare")

# How many rollouts or tokens are in work at once changes no number of the paper.
OWN = {"micro_batch", "micro_tokens", "save_every"}


def method_of(config: RunConfig) -> dict[str, object]:
    found = config.model_dump(mode="json")
    return {part: {name: value for name, value in found[part].items() if name not in OWN} for part in METHOD}


@pytest.mark.parametrize("folder", FAMILIES)
def test_a_family_runs_with_the_papers_numbers(folder: str) -> None:
    config = load_config(RUNS / folder / "run.yaml")
    assert method_of(config) == method_of(RunConfig())
    assert config.iterations == 3 and config.model.max_length == 16_384
    assert config.model.dialect == FAMILIES[folder] and config.domain == "wikipedia"
    assert config.judge.kind == "model" and config.judge.gates == ("entity", "source")
    assert config.cluster.judge.model == config.model.path, "J is M_0"


RUN_FILE = RUNS / "reasoning-arena" / "run.yaml"
CONFIG = load_config(RUN_FILE)


def test_the_loss_is_cispo_clipped_on_one_side_without_a_kl_term() -> None:
    loss = loss_of(CONFIG.solver)
    assert (CONFIG.solver.loss, loss.clip_low, loss.clip_high, CONFIG.solver.kl_beta) == (
        "cispo",
        1.0,
        2.0,
        0.0,
    )


def test_groups_that_the_verifier_cannot_tell_apart_go_to_a_live_tournament() -> None:
    assert isinstance(CONFIG.solver.reward, LiveReward)
    assert CONFIG.solver.routing is not None and CONFIG.solver.routing.by == "auto"
    assert CONFIG.solver.routing.budget is None


def test_the_judge_has_a_window_of_32768_tokens_in_which_two_traces_and_its_verdict_fit() -> None:
    judge = CONFIG.judge
    assert judge.endpoint.context == 32_768
    # Three characters a token, which is few for mathematics, and a thousand tokens of prompt.
    assert judge.max_chars / 3 + judge.calls[JudgeRole.COMPARE].max_tokens + 1000 < 32_768


@pytest.mark.parametrize(
    ("overrides", "design", "routed"),
    [
        (["solver.reward=verifier"], "verifier", False),
        (["solver.reward=rlaif"], "pointwise", False),
        (["solver.reward=adaptive_pointwise"], "pointwise", True),
        (["solver.reward=reasoning_arena"], "win_rate", True),
        (["solver.reward=reasoning_arena", "solver.routing=off"], "win_rate", False),
    ],
)
def test_a_baseline_is_the_run_with_another_reward(overrides: list[str], design: str, routed: bool) -> None:
    solver = load_config(RUN_FILE, overrides).solver
    assert (solver.reward.design, solver.routing is not None, solver.resample) == (design, routed, 8)


def test_resampling_leaves_hardly_a_flat_group_at_the_cost_of_the_papers_table_2() -> None:
    """Of its baseline RLVR: 47 % of the groups are flat, and a step takes 908 generations for 480 rollouts."""
    flat, rounds = 0.47, CONFIG.solver.resample
    assert flat ** (rounds + 1) < 0.002
    assert sum(480 * flat**number for number in range(rounds + 1)) == pytest.approx(908, rel=0.01)


NUMBERS: dict[str, dict[str, object]] = {
    "reasoning-arena": {
        "solver.batch": 60,
        "solver.group_size": 8,
        "solver.steps": 1500,
        "solver.warmup_ratio": 50 / 1500,
        "solver.learning_rate": 4e-7,
        "solver.reward.thoughts": False,
        "judge.truncation": "middle",
    },
    "tournament-grpo": {
        "solver.max_response": 18_000,
        "search.max_tokens": 3_000,
        "search.truncation": "middle",
        "tools": (ToolConfig(open=OpenConfig(max_calls=3, max_tokens=3_000, truncation="middle")),),
        "solver.max_search_turns": 4,
        "solver.batch": 16,
        "solver.group_size": 8,
        "solver.learning_rate": 1e-6,
        "sampling.temperature": 1.0,
        "sampling.top_p": 1.0,
        "judge.calls.compare.temperature": 0.0,
        "judge.calls.compare.top_p": 0.95,
        "cluster.judge.model": "/data/models/Qwen2.5-72B-Instruct",
        "solver.reward.group_size": 2,
        "solver.reward.repeats": 4,
    },
    "arenarl": {
        "solver.group_size": 16,
        "sampling.temperature": 0.8,
        "solver.reward.topology": "single_elimination",
        "cluster.prepare.model": "Qwen/Qwen3-8B-Base",
        "cluster.prepare.warm_start.epochs": 3.0,
        "cluster.prepare.warm_start.micro_batch": 1,
    },
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in NUMBERS for key in NUMBERS[name]])
def test_a_run_folder_states_its_papers_numbers(name: str, key: str) -> None:
    found: object = load_config(RUNS / name / "run.yaml")
    for part in key.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    expected = NUMBERS[name][key]
    assert found == (pytest.approx(expected, rel=0.01) if isinstance(expected, float) else expected)
