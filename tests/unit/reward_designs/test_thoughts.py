"""What the judges of the papers see: in Reasoning Arena the response without thoughts, in ArenaRL no results."""

from typing import Any

import pytest

from scope_selfplay.base.values import Rollout
from scope_selfplay.judge.fences import View, shown
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply, ScoreQuestion
from tests.unit.reward_designs.scripted import TASK, ScriptedJudge, all_right, reward, rollout

PAIRED = ("reasoning_arena", "reasoning_arena_live")
POINTWISE = ("rlaif", "adaptive_pointwise")
RIGHT = TASK.model_copy(update={"reference": "8"})


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


@pytest.mark.parametrize("preset", [*PAIRED, *POINTWISE])
def test_the_judge_sees_solutions_and_thoughts_only_where_a_run_wants_that(preset: str) -> None:
    group, wanted = [solved(number) for number in range(8)], {"design": preset, "thoughts": True}
    for settings, thoughts in (
        ({"reward": preset}, False),
        ({"reward": wanted, "routing": "verifier"}, True),
    ):
        reward(settings, judge := JudgeThatNotes(), group, task=RIGHT)
        assert judge.seen and all("Step" in seen and ("secret" in seen) is thoughts for seen in judge.seen)


@pytest.mark.parametrize("preset", PAIRED)
def test_traces_that_differ_in_their_thoughts_alone_are_one_to_the_judge(preset: str) -> None:
    judge = ScriptedJudge()
    found = reward({"reward": preset}, judge, all_right(range(8)), task=RIGHT)
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
