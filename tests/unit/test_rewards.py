"""Every reference case of `rewards` and `volume`, and every number of Table 9 that they use as a default."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from scope_selfplay.config import parse_config
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.judge_load import gates_and_rubric, grading
from scope_selfplay.planning.plan import make_plan
from scope_selfplay.rewards import (
    challenger_format,
    challenger_reward,
    difficulty_reward,
    explicit_reward,
    group_advantages,
    implicit_reward,
    in_window,
    length_factor,
    pairwise_reward,
    priority_weight,
    rubric_score,
    search_reward,
    solver_format,
    solver_reward,
)
from scope_selfplay.schemas import Priority
from scope_selfplay.store import Stage
from tests.reference_files import reference_cases

Case = dict[str, Any]


def total_and_advantage(case: Case) -> Case:
    totals = [tournament + bonus for tournament, bonus in zip(case["tour"], case["fmt"], strict=True)]
    # A trainer that divides by the sample std gets ours, smaller by this factor.
    shrink = math.sqrt((len(totals) - 1) / len(totals))
    by_sample_std = [shrink * advantage for advantage in group_advantages(totals, case["eps"] * shrink)]
    return {
        "r": totals,
        "A_population_std": group_advantages(totals, case["eps"]),
        "A_sample_std": by_sample_std,
    }


def grpo_advantage(case: Case) -> Case:
    advantages = group_advantages(case["R"], epsilon=0.0)
    return {"A": advantages, "sum_sq": sum(advantage**2 for advantage in advantages)}


def explicit_score(case: Case) -> Case:
    priorities = [Priority("bonus" if name == "nice_to_have" else name) for name in case["importance"]]
    weights = [priority_weight(priority) for priority in priorities]
    reward = explicit_reward(case["z"], weights, case["fmt"])
    return {"rubric": rubric_score(case["z"], weights), "r": reward}


def implicit_and_pairwise(case: Case) -> Case:
    return {
        "implicit": implicit_reward(case["z"], case["fmt"]),
        "pairwise": pairwise_reward(case["wins"] / (case["K"] - 1), case["fmt"]),
    }


def candidate_calls(answers: int, criteria: int) -> float:
    """Of one that passes: gates, one rubric, one grade per answer and criterion (section 3.1, figure 11)."""
    assumptions = Assumptions(criteria=criteria)
    return gates_and_rubric(2, assumptions).plus(grading(answers, assumptions)).calls


def iteration_budget(case: Case) -> Case:
    shared = {"steps": case["steps"], "group_size": case["G"]}
    challenger = shared | {"batch": case["batch_challenger"], "rollouts": case["N_train"]}
    config = parse_config({"challenger": challenger, "solver": shared | {"batch": case["batch_solver"]}})
    plan = make_plan(config, gates=2, assumptions=Assumptions(criteria=case["K"]), parameters=8e9)
    stages = {stage.stage: stage for stage in plan.stages}
    challenger_stage, solver_stage = stages[Stage.CHALLENGER], stages[Stage.SOLVER]
    return {
        "challenger_rollouts": challenger_stage.challenger_rollouts,
        "solver_rollouts_in_stage1": challenger_stage.solver_rollouts,
        "stage1_judge_calls_all_pass": challenger_stage.judge_calls,
        "filtered_tasks_target": solver_stage.prompts,
        "solver_train_rollouts": solver_stage.solver_rollouts,
        "solver_train_grade_calls": solver_stage.judge_calls,
    }


def solver_total(case: Case) -> Case:
    return {"R": solver_reward(case["g"], case["len"], case["F"], case["S"])}


CHECKS: dict[str, Callable[[Case], Case]] = {
    "total_and_advantage_eq9_10": total_and_advantage,
    "fdiff_eq5": lambda case: {"f": [difficulty_reward(mean, case["tau"]) for mean in case["g"]]},
    "length_penalty_eq7": lambda case: {"L": [length_factor(tokens) for tokens in case["len"]]},
    "rubric_eq1": lambda case: {"g": [rubric_score(met, weight) for weight, met in case["w_b"]]},
    "challenger_format": lambda case: {
        "r_fmt": [challenger_format(*row) for row in case["cases_think_turns_valid_expected_structure"]]
    },
    "challenger_reward_eq4": lambda case: {
        "R": [challenger_reward(form, bool(gates), mean) for form, gates, mean in case["rfmt_QG_g"]]
    },
    "solver_format": lambda case: {
        "F": [solver_format(*row) for row in case["think_turns_validnonfinal_answer"]]
    },
    "search_reward": lambda case: {"S": [search_reward(valid) for valid in case["valid"]]},
    "solver_reward_eq6": solver_total,
    "filter_window": lambda case: {"keep": [in_window(mean) for mean in case["g"]]},
    "grpo_advantage_population": grpo_advantage,
    "explicit_eq13_14": explicit_score,
    "implicit_pairwise_eq11_12_15": implicit_and_pairwise,
    "calls_scope_stage1": lambda case: {"calls": [candidate_calls(case["N_train"], k) for k in case["K"]]},
    "calls_scope_filter": lambda case: {"calls": [candidate_calls(case["N_filter"], k) for k in case["K"]]},
    "scope_iteration_budget": iteration_budget,
}


@pytest.mark.parametrize("case", reference_cases("reward_cases.json", "id"))
def test_a_reference_case_gives_its_expected_values(case: Case) -> None:
    actual = CHECKS[case["id"]](case["input"])
    assert actual.keys() == case["expected"].keys()
    for name, value in case["expected"].items():
        assert actual[name] == pytest.approx(value, abs=case["tol"], rel=0), name


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (difficulty_reward, "target", 0.5),
        (length_factor, "soft", 1024),
        (length_factor, "hard", 2048),
        (length_factor, "floor", 0.05),
        (search_reward, "saturation", 3),
        (challenger_reward, "format_weight", 0.5),
        (challenger_reward, "difficulty_weight", 1.0),
        (challenger_reward, "target", 0.5),
        (solver_reward, "rubric_weight", 1.0),
        (solver_reward, "format_weight", 0.5),
        (solver_reward, "search_weight", 0.1),
        (solver_reward, "soft", 1024),
        (solver_reward, "hard", 2048),
        (solver_reward, "floor", 0.05),
        (in_window, "low", 0.2),
        (in_window, "high", 0.8),
    ],
)
def test_a_default_is_the_papers_number(function: Callable[..., Any], name: str, value: float) -> None:
    assert inspect.signature(function).parameters[name].default == value
