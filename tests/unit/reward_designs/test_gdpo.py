"""GDPO: criteria and format are normalised in their group each for itself, then weighted and summed."""

from typing import Any

import pytest

from scope_selfplay.rewards.equations import summed_objectives
from tests.reference_files import read_reference, reference_cases
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollout, rollouts

FILE = "gdpo_cases.json"


@pytest.mark.parametrize("case", reference_cases(FILE, "id"))
def test_objectives_are_summed_as_worked_out_by_hand(case: dict[str, Any]) -> None:
    found = summed_objectives(case["objectives"], case["weights"], case["epsilon"])
    assert found == pytest.approx(case["expected"], abs=read_reference(FILE)["tolerance"])


def test_a_narrow_criterion_counts_as_much_as_a_wide_one() -> None:
    """The second criterion differs by 1 only, the first by 9: both are +-0.7071 after they are normalised."""
    group = rollouts("9 5 1", "0 6 1")
    (found,) = reward({"reward": "gdpo"}, ScriptedJudge(), group).rewards
    half = 0.5**0.5
    # Weights 3, 2 and 1; the third criterion and the format are equal. Half of the reward is the format's.
    assert found == pytest.approx([0.5 * (3 - 2) / 6 * half, -0.5 * (3 - 2) / 6 * half], abs=1e-3)


def test_the_format_is_an_objective_of_its_own() -> None:
    group = [rollout(0, "5 5 5"), rollout(1, "5 5 5", searched=False)]
    (found,) = reward({"reward": "gdpo"}, ScriptedJudge(), group).rewards
    assert found == pytest.approx([0.5 * 0.5**0.5, -0.5 * 0.5**0.5], abs=1e-3)


def test_no_answer_scores_nothing_and_a_failed_rollout_is_left_out() -> None:
    group = [*rollouts("9 9 9", None), rollout(2, "1 1 1", failed=True)]
    (found,) = reward({"reward": "gdpo"}, ScriptedJudge(), group).rewards
    assert found[:2] == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-3) and found[2] is None
