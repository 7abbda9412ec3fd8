"""Rollouts without an answer stand at the bottom of every comparison, tied, without a call."""

from typing import Any

import pytest

from tests.reference_files import read_reference, reference_cases
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts

FILE = "unanswered_cases.json"
TOPOLOGIES = ("round_robin", "anchor", "single_elimination", "double_elimination", "swiss")


@pytest.mark.parametrize("case", reference_cases(FILE, "id"))
def test_a_group_with_few_answers_is_rewarded_as_worked_out_by_hand(case: dict[str, Any]) -> None:
    for preset, expected in case["expected"].items():
        judge = ScriptedJudge()
        (found,) = reward({"reward": preset}, judge, rollouts(*case["answers"])).rewards
        assert found == pytest.approx(expected, abs=read_reference(FILE)["tolerance"]), preset
        assert len(judge.asked) == case["calls"].get(preset, len(judge.asked)), preset


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_ranks_the_weakest_answer_above_none(topology: str) -> None:
    settings = {"reward": {"design": "arena", "topology": topology}}
    (found,) = reward(settings, ScriptedJudge(), rollouts("1", None, "9", None)).rewards
    assert found == pytest.approx([2 / 3, 0.0, 1.0, 0.0])


def test_answers_that_meet_in_a_group_tournament_are_judged_once_per_repeat() -> None:
    """Two of eight in pairs: the rest beaten without a call, they meet in some round of each of the four repeats."""
    judge = ScriptedJudge()
    (found,) = reward({"reward": "tournament_grpo_2_1_1"}, judge, rollouts("1", "9", *[None] * 6)).rewards
    assert [asked[0] for asked in judge.asked].count("select") == 4
    assert found[1] == pytest.approx(2.0, abs=1e-5)
    assert found[0] is not None and 1.0 < found[0] < 2.0
