"""What the judges of the papers are shown of a rollout, which is all that tells one from another; repeats are judged
anew.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.values import Rollout, Selection
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.step import Rewarder, open_design, records_of
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.fences import View, read_fences, shown
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply, ScoreQuestion, SelectQuestion
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.testing.chat_server import FakeServer
from tests.judges import JudgeOver
from tests.reference_files import reference_cases
from tests.unit.reward_designs.scripted import (
    RUBRIC,
    TASK,
    JudgeOfThoughts,
    ScriptedJudge,
    all_right,
    finished_group,
    reward,
    rollout,
    rollouts,
)

RIGHT = TASK.model_copy(update={"reference": "8"})
LIVE_BY_VERIFIER = {"reward": "live", "routing": {"by": "verifier"}}
PAIRED = ("reasoning_arena", "reasoning_arena_live")


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


CALLS = {"live": 18, "win_rate": 28, "arena": 28, "balanced": 18, "pairwise": 0, "group_tournament": 0}


@pytest.mark.parametrize("design", CALLS)
def test_a_group_of_equal_answers_by_different_ways_costs_what_different_answers_cost(design: str) -> None:
    """Unless the judge is shown answers alone."""
    solver = SolverConfig.model_validate({"reward": design})
    opened = open_design(solver.reward, solver, len)
    assert opened.most_calls(TASK, RUBRIC, opened.entrants(all_right(range(8)))) == CALLS[design]
    assert opened.most_calls(TASK, RUBRIC, opened.entrants(all_right([5] * 8))) == 0


@pytest.mark.parametrize("case", reference_cases("reasoning_arena_cases.json", "id"))
def test_equal_boxes_are_rewarded_by_their_reasoning_as_the_paper_has_it(case: dict[str, Any]) -> None:
    judge = JudgeOfThoughts()
    settings = {"reward": case["input"]["design"], "routing": "verifier"}
    thoughts = enumerate(case["input"]["thoughts"])
    group = [rollout(number, "8", thought=thought) for number, thought in thoughts]
    (rewards,) = reward(settings, judge, group, task=RIGHT).rewards
    assert len(judge.asked) == case["expected"]["calls"]
    assert rewards == pytest.approx(case["expected"]["rewards"], abs=case["tol"])


class JudgeThatNotes(ScriptedJudge):
    """Keeps what each rollout looks like that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case PairQuestion(first=first, second=second, style=style):
                self.seen += [shown(each, style.view).text for each in (first, second)]
            case ScoreQuestion(rollout=rollout):
                self.seen.append(shown(rollout, View.TRACE).text)
        return await super().ask(question)


def solved(number: int) -> Rollout:
    """Right, with a thought and a written solution of its own."""
    plain = rollout(number, "8", thought=f"secret {number}", searched=False)
    text = f"<think>secret {number}</think>Step {number}. <answer>8</answer>"
    return plain.model_copy(update={"turns": (plain.turns[0].model_copy(update={"text": text}),)})


@pytest.mark.parametrize("preset", [*PAIRED, "rlaif", "adaptive_pointwise"])
def test_the_judge_sees_solutions_and_thoughts_only_where_a_run_wants_that(preset: str) -> None:
    group, wanted = [solved(number) for number in range(8)], {"design": preset, "thoughts": True}
    for settings, thoughts in (
        ({"reward": preset}, False),
        ({"reward": wanted, "routing": "verifier"}, True),
    ):
        reward(settings, judge := JudgeThatNotes(), group, task=RIGHT)
        assert judge.seen and all("Step" in seen and ("secret" in seen) is thoughts for seen in judge.seen)
    if preset in PAIRED:
        # Traces that differ in their thoughts alone are one to the judge.
        found = reward({"reward": preset}, judge := JudgeThatNotes(), all_right(range(8)), task=RIGHT)
        assert judge.asked == [] and not any(found.teaching)


@pytest.mark.parametrize(("settings", "results"), [({}, False), ({"results": True}, True)])
def test_the_judge_of_arenarl_sees_thoughts_calls_and_answers_but_no_results(
    settings: dict[str, bool], results: bool
) -> None:
    """ArenaRL, section 3.3: the core context is the thoughts and tool invocations of each step, and the answer."""
    judge = JudgeThatNotes()
    group = [rollout(number, str(number)) for number in range(4)]
    reward({"reward": {"design": "arenarl", **settings}}, judge, group)
    assert judge.seen and all("Let me see.\x1fwhy" in seen for seen in judge.seen)
    assert all(("P: p" in seen) is results for seen in judge.seen)


def first_shown(request: ServedRequest) -> ServedReply:
    """A judge that always picks what it is shown first."""
    first = next(each for each in read_fences(request.prompt) if each.name == "candidate")
    return ServedReply(f'{{"winners": ["{first.mark}"]}}')


async def test_every_match_of_every_repeat_is_a_call_of_its_own(
    judge_over: JudgeOver, tmp_path: Path
) -> None:
    """Eight answers, eight repeats: 56 matches, 56 calls, with 56 seeds; places are shown by chance."""
    fake, answers = FakeServer(first_shown), [f"{number} is the answer" for number in range(8)]
    reward = {"design": "tournament_grpo_2_1_1", "repeats": 8, "rubrics": "none"}
    # So patient that it asks a busy machine for no sign of life.
    async with judge_over(fake, cache=tmp_path / "judgements.sqlite") as judge:
        rewarder = Rewarder(SolverConfig.model_validate({"reward": reward}), MeteredJudge(judge), len)
        group = finished_group(TASK, RUBRIC, rollouts(*answers), ("g",))
        (records,) = records_of(await rewarder.judge_step([group], ("s",)))
        assert len(fake.requests) == len({request.body["seed"] for request in fake.requests}) == 56
        selections = records.of(Selection)
        assert [sum(each.repeat == repeat for each in selections) for repeat in range(8)] == [7] * 8
        assert len({selection.candidate_ids[0] for selection in selections}) == 8
        recorded = [[answers[int(name[1:])] for name in each.candidate_ids] for each in selections]
        prompts = [request.prompt for request in fake.requests]
        shown = [sorted((each for each in answers if each in text), key=text.index) for text in prompts]
        assert sorted(recorded) == sorted(shown)
        # Kept replies serve a repeated step, and not another repeat.
        for _ in range(2):
            pair = rollouts("One.", "Two.")
            questions = [SelectQuestion(TASK, None, pair, 1, repeat=repeat) for repeat in range(3)]
            await asyncio.gather(*map(judge.ask, questions))
    assert len(fake.requests) == 56 + 3
