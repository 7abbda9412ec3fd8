"""What every preset pays, worked out by hand from the papers' formulas."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from scope_selfplay.base.values import Check, Criterion, Outcome, Rollout, Rubric
from scope_selfplay.config.training import PRESETS, RewardSettings, SolverConfig
from scope_selfplay.designs.answers import whole_structure
from scope_selfplay.designs.design import PerAnswerDesign, RolloutGroup
from scope_selfplay.designs.step import open_design
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply
from scope_selfplay.rewards.equations import summed_objectives
from tests.reference_files import read_reference, reference_cases
from tests.unit.reward_designs.scripted import (
    RUBRIC,
    TASK,
    ScriptedJudge,
    finished_group,
    reward,
    rollout,
    rollouts,
)

EPSILON = 1e-6
CASES: list[tuple[Any, tuple[str | None, ...], list[float], int | None]] = [
    # Equation 6: the share of criteria at 5 or more, + 0.5 * format 1 + 0.1 * 1 search of 3.
    ("rubric", ("9 9 1", "1 1 1", "9 9 9"), [2 / 3 + 0.5 + 0.1 / 3, 0.5 + 0.1 / 3, 1.5 + 0.1 / 3], 9),
    ("verifier", ("Eight ", "9", "eight"), [1.0, 0.0, 1.0], 0),
    ("implicit", ("7.5", "4", "0"), [0.75 + 1, 0.4 + 1, 1.0], 4),
    # (3 * 0.8 + 2 * 0.5 + 1 * 1.0) / 6 = 11/15, half of it and half of the format.
    ("explicit", ("8 5 10", "0 0 0"), [0.5 * (11 / 15 + 1), 0.5], 7),
    ("pairwise", ("3", "2", "1"), [1 + 1, 0.5 + 1, 0 + 1], 4),
    # Equal answers tie: half a win of two.
    ("pairwise", ("3", "1", "1"), [1 + 1, 0.25 + 1, 0.25 + 1], None),
    ("pointwise", ("10", "5", "0"), [1.0, 0.5, 0.0], 3),
    ("arenarl_pointwise", ("7.5", "4", "0"), [0.75, 0.4, 0.0], 3),
    # Reasoning Arena equation 8 at gamma 0.9: two wins; a loss and a tie.
    ("win_rate", ("3", "1 a", "1 b"), [0.9, 0.3, 0.3], 3),
    # One group of four in each of eight repeats: 8 points for two of them.
    (
        "tournament_grpo_4_2_2",
        ("4", "3", "2", "1"),
        [8 / (8 + EPSILON) + 1, 8 / (8 + EPSILON) + 1, 1.0, 1.0],
        None,
    ),
    ("tournament_grpo_2_1_1", ("2", "1"), [4 / (4 + EPSILON) + 1, 1.0], None),
    # Seeds by the anchor 7, which it has met all; new is 9 against 1; 4 comes before 1 by its scores.
    ("arenarl", ("7", "9", "1", "4"), [2 / 3, 1.0, 0.0, 1 / 3], 2 * (3 + 1)),
    ({"design": "arena", "topology": "round_robin"}, ("5", "7", "7 b"), [0.0, 0.75, 0.75], 6),
    ({"design": "arena", "topology": "anchor"}, ("5", "7", "1", "6"), [1 / 3, 1.0, 0.0, 2 / 3], 6),
    ({"design": "arena", "topology": "swiss"}, ("5", "7"), [0.0, 1.0], 2),
    ({"design": "arena", "topology": "double_elimination"}, ("5", "7"), [0.0, 1.0], 2),
    # All three pairs once, a transitive order: Bradley-Terry puts the middle one in the middle.
    ("live", ("1", "5", "9"), [0.0, 0.5, 1.0], 3),
    # Exact margins are fitted exactly: 1 is at a quarter of the way from 0 to 4.
    ("balanced", ("4", "1", "0"), [1.0, 0.25, 0.0], None),
]


@pytest.mark.parametrize(("design", "answers", "expected", "calls"), CASES)
def test_a_design_pays_what_its_paper_says(
    design: Any, answers: tuple[str | None, ...], expected: list[float], calls: int | None
) -> None:
    judge = ScriptedJudge()
    found = reward({"reward": design}, judge, rollouts(*answers))
    assert found.rewards == [pytest.approx(expected, abs=1e-5)]
    assert found.metrics["judge_calls"] == len(judge.asked)
    assert calls is None or len(judge.asked) == calls


LOOKED, DONE = "<think>Let me see.</think>\n<search>why</search>", "<think>So.</think>\n<answer>8</answer>"
NATIVE = '<tool_call>\n{"name": "search", "arguments": {"query": "why"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ((LOOKED, DONE), 1.0),
        ((DONE,), 0.0),
        ((f"<think>\nHm.\n</think>\n\n{NATIVE}", DONE), 1.0),
        # The template had opened the thought.
        ((f"Hm.</think>{NATIVE}", "So.</think><answer>8</answer>"), 1.0),
        ((LOOKED, "<think></think><answer>8</answer>"), 0.0),
        ((LOOKED, f"Here it is. {DONE}"), 0.0),
        ((LOOKED, "<think>So.</think>Here it is: <answer>8</answer>"), 0.0),
        (("<think>Hm.</think>I look it up. <search>why</search>", DONE), 0.0),
        (("<think>Hm.</think><search>why</search><search>how</search>", DONE), 0.0),
        ((LOOKED, "<think>So.</think><think>Well.</think><answer>8</answer>"), 0.0),
    ],
)
def test_the_binary_format_allows_nothing_outside_of_the_tags(texts: tuple[str, ...], whole: float) -> None:
    """Tournament-GRPO, appendix B: no other text, a thought that is not empty, the answer as the last block."""
    sampled = rollout(0, "8", searched=len(texts) > 1)
    turns = [turn.model_copy(update={"text": text}) for turn, text in zip(sampled.turns, texts, strict=True)]
    changed = sampled.model_copy(update={"turns": tuple(turns)})
    assert whole_structure(changed) == whole
    assert reward({"reward": "implicit"}, ScriptedJudge(), [changed]).rewards == [[0.8 + whole]]


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("tournament_grpo_2_1_1", {"group_size": 2, "winners": 1, "final": 1, "repeats": 4}),
        ("tournament_grpo_4_2_2", {"group_size": 4, "winners": 2, "final": 2, "repeats": 8}),
        (
            "arenarl",
            {"topology": "single_elimination", "both_orders": True, "score": "own", "results": False},
        ),
        ("arenarl_pointwise", {"design": "pointwise", "prompt": "answer"}),
        ("reasoning_arena", {"design": "win_rate"}),
        ("reasoning_arena_live", {"design": "live"}),
        ("rlaif", {"design": "pointwise", "prompt": "proof"}),
        ("adaptive_pointwise", {"design": "pointwise", "prompt": "correctness"}),
    ],
)
def test_presets_have_the_papers_settings(preset: str, settings: dict[str, Any]) -> None:
    chosen = SolverConfig.model_validate({"reward": preset}).reward.model_dump()
    assert settings.items() <= chosen.items()


async def test_how_an_answer_is_verified_follows_from_the_task_and_the_answer() -> None:
    boxed = Rubric(task_id=TASK.id, criteria=(Criterion(text="In a box.", check=Check.BOXED),))
    for check, rubric, answer, expected in (
        ("auto", boxed, "so \\boxed{8}", 1.0),
        ("auto", boxed, "8", 0.0),
        ("auto", RUBRIC, "so \\boxed{8}", 1.0),
        ("auto", RUBRIC, " 8 ", 1.0),
        ("exact", RUBRIC, "so \\boxed{8}", 0.0),
        ("f1", RUBRIC, "8 or 9", 0.5),
        ("f1", boxed, "9", 0.0),
    ):
        solver = SolverConfig.model_validate({"reward": {"design": "verifier", "check": check}})
        group = finished_group(TASK.model_copy(update={"reference": "8"}), rubric, rollouts(answer))
        design = open_design(solver.reward, solver, len)
        assert await design.rewards(group, MeteredJudge(ScriptedJudge())) == [expected], (check, answer)


def test_only_designs_with_an_anchor_make_the_first_rollout_greedy() -> None:
    others = ("round_robin", "double_elimination", "swiss")
    for preset in (*PRESETS, *({"design": "arena", "topology": topology} for topology in others)):
        solver = SolverConfig.model_validate({"reward": preset})
        has_anchor = open_design(solver.reward, solver, len).has_anchor
        assert has_anchor == (preset in ("arena", "arenarl")), preset


def test_a_tie_that_no_call_gave_is_no_verdict() -> None:
    settings = {"reward": {"design": "balanced", "max_missing": 1}}
    groups = [rollouts("9", "9", "5", "4", "1", first=10 * number) for number in range(8)]
    for rewards in reward(settings, ScriptedJudge(fails=["9"]), *groups).rewards:
        assert rewards[:2] == [None, None]
        assert rewards[2:] == pytest.approx([1.0, 0.75, 0.0], abs=0.05)


def test_the_anchor_is_seeded_by_margin_zero() -> None:
    """Margins over the anchor 5: +4, -0.2, -0.1. At 0 it is the second seed, and the best meets 4.8."""
    judge = ScriptedJudge()
    reward({"reward": "arena"}, judge, rollouts("5", "9", "4.8", "4.9"))
    asked = {frozenset(pair[1:]) for pair in judge.asked}
    assert {"9", "4.8"} in asked and {"4.8", "4.9"} not in asked


class Fickle(ScriptedJudge):
    """Between a and b, judges for a at first, and for b whenever they meet again."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        found = await super().ask(question)
        assert isinstance(question, PairQuestion)
        better = "1 b" if question.repeat else "1 a"
        scores = [float(rollout.answer == better) for rollout in (question.first, question.second)]
        return replace(found, value=Outcome(*scores))


@pytest.mark.parametrize(("reset", "calls"), [(False, 2), (True, 6)])
def test_a_final_lost_by_the_undefeated_is_played_again(reset: bool, calls: int) -> None:
    """Of two answers a wins the first match. Judged once, a wins the final as well; judged anew, b wins the final, the
    first defeat of a, and the match that decides."""
    judge, settings = Fickle(), {"design": "arena", "topology": "double_elimination", "reset": reset}
    found = reward({"reward": settings}, judge, rollouts("1 a", "1 b"))
    assert len(judge.asked) == calls
    assert found.rewards == [[0.0, 1.0] if reset else [1.0, 0.0]]
    if reset:
        with pytest.raises(ValidationError, match="only with double_elimination"):
            SolverConfig.model_validate({"reward": {**settings, "topology": "swiss"}})


class BrevityReward(RewardSettings):
    design: Literal["brevity"] = "brevity"


async def test_a_design_with_one_method_rewards_a_group_at_a_price_that_covers_its_calls() -> None:
    class BrevityDesign(PerAnswerDesign[BrevityReward]):
        name = "brevity"

        async def answer_reward(
            self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge
        ) -> float | None:
            grade = await judge.grade_rollout(group.task, group.rubric, rollout, key=(*group.key, rollout.id))
            length = self.count_tokens(rollout.answer or "") / 1000
            return None if grade.score is None else grade.score / (1 + length)

    design = BrevityDesign(BrevityReward(), SolverConfig(), lambda text: len(text.split()))
    answers = rollouts("9 9 9", "9 9 9 and so on and on", None)
    judge = MeteredJudge(ScriptedJudge())
    short, long, absent = await design.rewards(finished_group(TASK, RUBRIC, answers), judge)
    assert short is not None and long is not None and short > long > 0
    assert absent == 0.0 and judge.tally.calls == 2 * len(RUBRIC.criteria)
    assert design.most_calls(TASK, RUBRIC, design.entrants(answers)) == judge.tally.calls


GROUPS = [rollouts(*answers) for answers in (["8", "8"], ["1", "2"], ["8", "1"], ["3", None])]
WITH_VERIFIER = (
    {"reward": "verifier"},
    {"reward": "win_rate", "routing": "verifier"},
    {"reward": "live", "routing": "auto"},
    {"reward": "win_rate", "routing": {"by": "verifier", "budget": 1}},
)


def test_shares_of_right_and_wrong_are_the_verifiers_and_rollouts_are_counted() -> None:
    """Without a verifier there are no such shares."""
    for settings in (*WITH_VERIFIER, {"reward": "win_rate"}):
        right = TASK.model_copy(update={"reference": "8"})
        metrics = reward(settings, ScriptedJudge(), *GROUPS, task=right).metrics
        shares = [metrics.get(name) for name in ("verified", "all_right", "all_wrong")]
        assert shares == ([3 / 8, 1 / 4, 1 / 2] if settings in WITH_VERIFIER else [None] * 3)
        assert metrics["generations"] == 8


FILE = "gdpo_cases.json"


@pytest.mark.parametrize("case", reference_cases(FILE, "id"))
def test_objectives_are_summed_as_worked_out_by_hand(case: dict[str, Any]) -> None:
    found = summed_objectives(case["objectives"], case["weights"], case["epsilon"])
    assert found == pytest.approx(case["expected"], abs=read_reference(FILE)["tolerance"])


@pytest.mark.parametrize(
    ("group", "ahead"),
    [
        # The second criterion differs by 1 only, the first by 9: both are +-0.7071 after they are normalised. Weights
        # 3, 2 and 1; the third criterion and the format are equal. Half of the reward is the format's.
        (rollouts("9 5 1", "0 6 1"), 0.5 * (3 - 2) / 6),
        # The format is an objective of its own.
        ([rollout(0, "5 5 5"), rollout(1, "5 5 5", searched=False)], 0.5),
        # No answer scores nothing, and a failed rollout is left out.
        ([*rollouts("9 9 9", None), rollout(2, "1 1 1", failed=True)], 1.0),
    ],
    ids=["narrow", "format", "missing"],
)
def test_every_objective_counts_as_much_as_its_weight(group: list[Rollout], ahead: float) -> None:
    (found,) = reward({"reward": "gdpo"}, ScriptedJudge(), group).rewards
    assert found[:2] == pytest.approx([ahead * 0.5**0.5, -ahead * 0.5**0.5], abs=1e-3)
    assert found[2:] == [None] * (len(group) - 2)
