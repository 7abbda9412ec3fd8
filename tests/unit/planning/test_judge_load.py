"""What a plan charges for judging: each design's own calls, what they read, routing, and stage D."""

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.config.rewards import DESIGNS
from scope_selfplay.plan.load import ResourcePlan, group_load, make_plan, step_load
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.store.folder import Stage

GIVEN = Assumptions(
    criteria=4, answer_tokens=500, judge_prompt_tokens=100, rollout_tokens=1000, read_tokens=2000
)
CALLS_OF_8 = {
    "rubric": 32,
    "verifier": 0,
    "implicit": 9,
    "explicit": 33,
    "pointwise": 8,
    "pairwise": 29,
    "win_rate": 28,
    "tournament_grpo_2_1_1": 29,
    "tournament_grpo_4_2_2": 25,
    "arenarl": 28,
    "live": 18,
    "balanced": 18,
}


def plan_with(*settings: str) -> ResourcePlan:
    config = load_config(None, ["model.path=Qwen3-8B", *settings])
    return make_plan(config, gates=2, assumptions=GIVEN)


def solver_calls(*settings: str) -> int:
    return next(stage for stage in plan_with(*settings).stages if stage.stage is Stage.SOLVER).judge_calls


@pytest.mark.parametrize("preset", CALLS_OF_8)
def test_a_step_is_charged_the_calls_that_the_design_plans(preset: str) -> None:
    """20 steps of 256 groups of 8; rubrics that a paper writes from the query are one call a group."""
    assert solver_calls(f"solver.reward={preset}") == 20 * 256 * CALLS_OF_8[preset]


def test_every_design_is_charged_something_or_needs_no_judge() -> None:
    for name in DESIGNS:
        load = group_load(load_config(None, [f"solver.reward={name}"]).solver, GIVEN)
        assert (load.calls > 0) == (load.read > 0) == (name != "verifier")


@pytest.mark.parametrize(
    ("preset", "read"),
    [
        ("rubric", 500),
        ("pointwise", 3000),
        ("live", 2 * 3000),
        ("arena", 2 * 3000),
        # Without what the tools returned.
        ("arenarl", 2 * 1000),
        ("tournament_grpo_4_2_2", 4 * 500),
    ],
)
def test_a_comparison_reads_as_many_rollouts_as_it_compares(preset: str, read: int) -> None:
    solver = load_config(None, [f"solver.reward={preset}", "solver.reward.max_missing=0.25"]).solver
    load = group_load(solver, GIVEN)
    written = 1 if getattr(solver.reward, "rubrics", None) == "query" else 0
    assert (load.read - 100 * written) / (load.calls - written) == pytest.approx(100 + read)


def test_routed_designs_are_charged_for_flat_groups_alone() -> None:
    groups = 20 * 256
    by_rubric = ("solver.reward=live", "solver.routing=rubric")
    assert solver_calls(*by_rubric) == groups * 32 + 0.3 * groups * 18
    assert solver_calls("solver.reward=live", "solver.routing={by: verifier}") == 0.3 * groups * 18
    budget = solver_calls("solver.reward=live", "solver.routing={by: rubric, budget: 100}")
    assert budget == groups * 32 + 20 * 100
    config = load_config(None, ["solver.reward=live", "solver.routing={by: verifier, budget: 100}"])
    flat = step_load(config, Assumptions(flat_share=0.1))
    assert flat.calls == pytest.approx(100)


def test_a_larger_judge_takes_longer_by_the_parameters_that_a_token_meets() -> None:
    own = plan_with().total("judge_hours") / 8.19
    dense = plan_with("cluster.judge.model=/data/models/Qwen2.5-72B-Instruct").total("judge_hours") / 72
    experts = plan_with("cluster.judge.model=/data/models/Qwen3-235B-A22B").total("judge_hours") / 22
    assert [dense, experts] == pytest.approx([own, own], rel=0.001)


@pytest.mark.parametrize(("orders", "times"), [("false", 1), ("true", 2)])
def test_stage_d_compares_with_every_earlier_solver(orders: str, times: int) -> None:
    """Three iterations: S_1 meets one, S_2 two, S_3 three; 200 tasks, 4 criteria."""
    plan = plan_with("iterations=3", f"compare.both_orders={orders}")
    stage = plan.stages[-1]
    assert stage.stage is Stage.COMPARE
    assert 3 * stage.judge_calls == 200 * (3 * 4 + times * (1 + 2 + 3))


def test_held_out_tasks_are_made_and_answered_once() -> None:
    """Without a Solver to try them, what passes two gates and has a rubric is kept; S_0 answers all."""
    made, answered = plan_with().once
    assert (made.stage, made.prompts, made.solver_rollouts) == (Stage.TASKS, round(200 / 0.7), 0)
    assert made.judge_calls == 3 * made.prompts
    assert (answered.stage, answered.solver_rollouts, answered.judge_calls) == (Stage.COMPARE, 200, 800)
    (only,) = plan_with("compare.given=tasks.jsonl").once
    assert only.stage is Stage.COMPARE
    plan = plan_with()
    hours = ("generate_hours", "judge_hours", "train_hours")
    once = sum(getattr(stage, name) for stage in plan.once for name in hours)
    assert plan.gpu_hours == pytest.approx(once + 3 * sum(plan.total(name) for name in hours))


def test_a_challenger_that_is_frozen_early_is_trained_as_often_as_it_is() -> None:
    always, once = plan_with(), plan_with("challenger.freeze_after=1")
    assert [stage.times for stage in once.stages] == [1, 3, 3, 3]
    hours = sum(getattr(always.stages[0], name) for name in ("generate_hours", "judge_hours", "train_hours"))
    assert always.gpu_hours - once.gpu_hours == pytest.approx(2 * hours)
    assert plan_with("challenger.freeze_after=0").stages[0].stage is Stage.TASKS
