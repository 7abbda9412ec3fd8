"""Entrants are told apart by all that the judge is shown of them."""

from typing import Any

import pytest

from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.step import open_design
from tests.reference_files import reference_cases
from tests.unit.reward_designs.scripted import RUBRIC, TASK, JudgeOfThoughts, all_right, reward, rollout

RIGHT = TASK.model_copy(update={"reference": "8"})
TRACES = ("live", "win_rate", "arena", "balanced")
ANSWERS = ("pairwise", "group_tournament")
LIVE_BY_VERIFIER = {"reward": "live", "routing": {"by": "verifier"}}


def test_eight_right_traces_with_equal_boxes_make_eighteen_calls_and_are_ranked() -> None:
    """1 + 2 + 3 * 5 calls (Reasoning Arena, appendix B), and a group that verified rewards cannot tell apart."""
    judge = JudgeOfThoughts()
    found = reward(LIVE_BY_VERIFIER, judge, all_right(range(8)), task=RIGHT)
    assert len(judge.asked) == 18 and found.metrics["judge_calls"] == 18
    assert found.metrics["routed"] == 1.0 and all(found.teaching)
    (rewards,) = found.rewards
    assert rewards[0] == 0.0 and rewards[-1] == pytest.approx(1.0, abs=1e-5)
    # One and the same trace is not judged and does not count as routed.
    same = reward(LIVE_BY_VERIFIER, judge, all_right([5] * 8), task=RIGHT)
    assert len(judge.asked) == 18 and same.metrics["routed"] == 0.0 and not any(same.teaching)


@pytest.mark.parametrize(
    ("design", "calls"), [("live", 18), ("win_rate", 28), ("arena", 28), ("balanced", 18)]
)
def test_a_group_of_equal_answers_by_different_ways_costs_what_different_answers_cost(
    design: str, calls: int
) -> None:
    solver = SolverConfig.model_validate({"reward": design})
    opened = open_design(solver.reward, solver, len)
    assert opened.most_calls(TASK, RUBRIC, opened.entrants(all_right(range(8)))) == calls
    assert opened.most_calls(TASK, RUBRIC, opened.entrants(all_right([5] * 8))) == 0


@pytest.mark.parametrize("design", [*TRACES, *ANSWERS])
def test_only_who_shows_traces_tells_equal_answers_apart(design: str) -> None:
    judge = JudgeOfThoughts()
    (rewards,) = reward({"reward": design}, judge, all_right([1, 9, 5])).rewards
    if design in ANSWERS:
        assert judge.asked in ([], [("rubric",)]) and len(set(rewards)) == 1
        return
    worst, best, middle = (each or 0.0 for each in rewards)
    assert judge.asked and (best > middle > worst or (design == "arena" and best > worst))


@pytest.mark.parametrize("case", reference_cases("reasoning_arena_cases.json", "id"))
def test_equal_boxes_are_rewarded_by_their_reasoning_as_the_paper_has_it(case: dict[str, Any]) -> None:
    judge = JudgeOfThoughts()
    settings = {"reward": case["input"]["design"], "routing": "verifier"}
    thoughts = enumerate(case["input"]["thoughts"])
    group = [rollout(number, "8", thought=thought) for number, thought in thoughts]
    (rewards,) = reward(settings, judge, group, task=RIGHT).rewards
    assert len(judge.asked) == case["expected"]["calls"]
    known = [each or 0.0 for each in rewards]
    if case["input"]["design"] == "live" and case["expected"]["calls"] == 0:
        assert len(set(known)) == 1
    else:
        assert known == pytest.approx(case["expected"]["rewards"], abs=case["tol"])
