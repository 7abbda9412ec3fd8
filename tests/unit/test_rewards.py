"""Every reference case of `rewards` and `volume`; the defaults that they use are the numbers of Table 9."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from scope_selfplay.base.values import Priority
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.plan.load import gates_and_rubric, grading, make_plan
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.rewards.equations import (
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
from scope_selfplay.store.folder import Stage
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
    return {"R": solver_reward(case["g"], case["len"], case["F"], case["S"], SolverConfig())}


CHECKS: dict[str, Callable[[Case], Case]] = {
    "total_and_advantage_eq9_10": total_and_advantage,
    "fdiff_eq5": lambda case: {"f": [difficulty_reward(mean, case["tau"]) for mean in case["g"]]},
    "length_penalty_eq7": lambda case: {"L": [length_factor(tokens) for tokens in case["len"]]},
    "rubric_eq1": lambda case: {"g": [rubric_score(met, weight) for weight, met in case["w_b"]]},
    "challenger_format": lambda case: {
        "r_fmt": [challenger_format(*row) for row in case["cases_think_turns_valid_expected_structure"]]
    },
    "challenger_reward_eq4": lambda case: {
        "R": [
            challenger_reward(form, mean if gates else None, ChallengerConfig())
            for form, gates, mean in case["rfmt_QG_g"]
        ]
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
