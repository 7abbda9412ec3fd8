"""The run of Reasoning Arena on a cluster has the numbers of the paper's appendix B."""

from pathlib import Path

import pytest

from scope_selfplay.base.values import Truncation
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.config.rewards import LiveReward
from scope_selfplay.training.loss import loss_of

RUN_FILE = Path(__file__).parents[3] / "k8s" / "runs" / "reasoning-arena" / "run.yaml"
CONFIG = load_config(RUN_FILE)


def test_a_step_has_480_rollouts_in_groups_of_eight() -> None:
    assert (CONFIG.solver.batch * CONFIG.solver.group_size, CONFIG.solver.group_size) == (480, 8)


def test_1500_steps_at_4e_7_after_50_to_warm_up() -> None:
    solver = CONFIG.solver
    assert (solver.steps, solver.learning_rate) == (1500, 4e-7)
    assert round(solver.steps * solver.warmup_ratio) == 50


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


def test_the_judge_sees_the_response_without_thoughts_and_both_its_ends() -> None:
    assert isinstance(CONFIG.solver.reward, LiveReward) and not CONFIG.solver.reward.thoughts
    assert CONFIG.judge.truncation is Truncation.MIDDLE


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
