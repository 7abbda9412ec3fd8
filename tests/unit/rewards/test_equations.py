"""Every reference case of `rewards` and `volume`; the defaults that they use are the numbers of Table 9."""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pytest import approx

from scope_selfplay.base.values import Criterion, Priority
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.plan.load import gates_and_rubric, grading, make_plan
from scope_selfplay.plan.size import Assumptions
from scope_selfplay.rewards.equations import (
    TOLERANCE,
    challenger_format,
    challenger_reward,
    criterion_weights,
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
from scope_selfplay.rewards.measures import Greatest, Mean, RolloutClock, Total, in_turn, joined_values
from scope_selfplay.store.folder import Stage
from tests.reference_files import reference_cases

Case = dict[str, Any]


def total_and_advantage(case: Case) -> Case:
    totals = [sum(parts) for parts in zip(case["tour"], case["fmt"], strict=True)]
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
    "solver_reward_eq6": lambda case: {
        "R": solver_reward(case["g"], case["len"], case["F"], case["S"], SolverConfig())
    },
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


CHALLENGER, SOLVER = ChallengerConfig(), SolverConfig()
units, targets, weights = st.floats(0.0, 1.0), st.floats(0.01, 0.99), st.floats(0.01, 100.0)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 5))
def test_missing_verdicts_are_left_out(met: list[bool], missing: int) -> None:
    assert rubric_score([*met, *[None] * missing]) == rubric_score(met)
    assert rubric_score([None] * missing) is rubric_score([None, True], [1.0, 0.0]) is None
    assert solver_reward(None, 10, 1.0, 1.0, SOLVER) is None


@given(units, units, targets)
def test_difficulty_pays_most_at_the_target_less_further_from_it_and_nothing_at_the_nearer_end(
    first: float, second: float, target: float
) -> None:
    near, far = sorted((first, second), key=lambda mean: abs(mean - target))
    assert 1.0 >= difficulty_reward(near, target) >= difficulty_reward(far, target) >= 0.0
    assert difficulty_reward(target, target) == 1.0
    assert difficulty_reward(0.0 if target <= 0.5 else 1.0, target) == pytest.approx(0.0)


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 1000), st.integers(1, 1000), units)
def test_a_longer_answer_never_keeps_more_and_all_keep_the_least(
    first: int, second: int, soft: int, width: int, floor: float
) -> None:
    short, long = sorted((first, second))
    assert 1.0 >= length_factor(short) >= length_factor(long) >= 0.05
    kept = [length_factor(tokens, soft, soft + width, floor) for tokens in (short, long)]
    assert 1.0 >= kept[0] >= kept[1] >= floor
    ramp = [length_factor(soft + part, soft, soft + 2 * width, floor) for part in (0, width, 2 * width)]
    assert ramp == pytest.approx([1.0, (1.0 + floor) / 2, floor])


@given(st.floats(0.01, 1.0), units)
def test_a_passed_gate_adds_the_difficulty_reward_where_there_is_any_format(form: float, mean: float) -> None:
    assert challenger_reward(form, mean, CHALLENGER) == pytest.approx(0.5 * form + difficulty_reward(mean))
    assert challenger_reward(form, None, CHALLENGER) == 0.5 * form
    assert challenger_reward(0.0, mean, CHALLENGER) == challenger_reward(0.0, None, CHALLENGER) == 0.0


@pytest.mark.parametrize(("scores", "outside"), [([0.2] * 8, 0.2 - 1e-6), ([0.8] * 3, 0.8 + 1e-6)])
def test_rounding_alone_does_not_push_a_mean_out_of_the_window(scores: list[float], outside: float) -> None:
    mean = sum(scores) / len(scores)
    assert not 0.2 <= mean <= 0.8
    assert in_window(mean) and not in_window(outside)
    assert in_window(0.2 - TOLERANCE) and in_window(0.8 + TOLERANCE)
    assert pairwise_reward(1.0 + TOLERANCE, -TOLERANCE) == 1.0


def test_criteria_weigh_what_they_say_or_by_priority_where_all_say_the_same() -> None:
    criteria = [Criterion(text=each, priority=each) for each in Priority]
    assert criterion_weights(criteria) == [3.0, 2.0, 1.0]
    heavier = criteria[1].model_copy(update={"weight": 5.0})
    assert criterion_weights([criteria[0], heavier]) == [1.0, 5.0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rubric_score([True], [1.0, 1.0]), "zip"),
        (lambda: rubric_score([1.5]), "verdict must lie in"),
        (lambda: rubric_score([math.nan]), "verdict must lie in"),
        (lambda: difficulty_reward(1.1), "mean must lie in"),
        (lambda: challenger_reward(1.5, 0.5, CHALLENGER), "format must lie in"),
        (lambda: solver_reward(1.5, 10, 1.0, 1.0, SOLVER), "score must lie in"),
        (lambda: solver_reward(1.0, 10, math.nan, 1.0, SOLVER), "format must lie in"),
        (lambda: in_window(2.0, 0.2, 0.8), "mean must lie in"),
        (lambda: implicit_reward(11.0, 1.0), "a tenth of the score must lie in"),
        (lambda: pairwise_reward(1.5, 1.0), "share of wins must lie in"),
        (lambda: group_advantages([1.0, math.nan]), "finite"),
    ],
)
def test_an_impossible_input_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


rewards = st.floats(-1e6, 1e6)


@given(st.lists(rewards, min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_their_squares_to_the_group_size(group: list[float]) -> None:
    assume(max(group) - min(group) > 1e-3)
    advantages = group_advantages(group, epsilon=0.0)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)
    assert math.fsum(advantage**2 for advantage in advantages) == pytest.approx(len(group))


@given(rewards, st.integers(1, 16))
def test_a_flat_group_has_exactly_no_advantages(reward: float, size: int) -> None:
    assert group_advantages([reward] * size) == [0.0] * size == group_advantages([reward] * size, epsilon=0.0)
    # Too close to square.
    assert group_advantages([0.0, 5e-324], epsilon=0.0) == [0.0, 0.0]


@given(st.lists(rewards, min_size=2, max_size=8), st.integers(0, 8))
def test_a_missing_reward_gets_0_and_moves_no_other(group: list[float], position: int) -> None:
    position = min(position, len(group))
    with_gap = group_advantages([*group[:position], None, *group[position:]])
    assert with_gap.pop(position) == 0.0
    assert with_gap == group_advantages(group)
    assert group_advantages([None] * position) == [0.0] * position


@given(st.lists(st.lists(st.none() | st.floats(-10, 10), max_size=6), min_size=1, max_size=4))
def test_the_mean_of_parts_is_the_mean_of_the_whole(parts: list[list[float | None]]) -> None:
    whole = joined_values([{"length": Mean.of(value for part in parts for value in part)}])["length"]
    joined = joined_values([{"length": Mean.of(part)} for part in parts])["length"]
    assert joined == (whole if whole is None else approx(whole, abs=1e-9))


def test_calls_are_summed_waits_are_the_longest_and_what_one_part_lacks_is_no_zero() -> None:
    parts = [
        {"judge_calls": Total(10), "judge_missing": Mean(1, 10), "rollout_seconds": Greatest(4.0)},
        {"judge_calls": Total(90), "judge_missing": Mean(19, 90), "rollout_seconds": Greatest(2.5)},
    ]
    assert joined_values(parts) == {"judge_calls": 100.0, "judge_missing": 0.2, "rollout_seconds": 4.0}
    plain = [{"format": 0.5, "rubric": None}, {"format": 1.0, "rubric": 0.25}, {}]
    assert joined_values(plain) == {"format": 0.75, "rubric": 0.25}
    # A share of nothing is what it is said to be.
    nothing = {"judge_missing": Mean(0, 0, over_nothing=0.0), "rubric": Mean.of([None])}
    assert joined_values([nothing]) == {"judge_missing": 0.0, "rubric": None}


def test_a_step_waits_for_its_rollouts_and_then_for_their_rewards() -> None:
    before, clock = perf_counter(), RolloutClock()
    clock.finished()
    parts = [clock.seconds(), clock.seconds()]
    waited = joined_values([in_turn(parts)])
    assert waited["rollout_seconds"] == 2 * joined_values(parts)["rollout_seconds"] > 0
    assert 0 < joined_values(parts)["reward_seconds"] < waited["reward_seconds"]
    assert sum(joined_values(parts).values()) < perf_counter() - before
