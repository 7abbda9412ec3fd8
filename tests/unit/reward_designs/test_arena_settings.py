"""What the settings of ArenaRL's tournaments change, worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from scope_selfplay.base.values import Outcome
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts


def rewarded(judge: ScriptedJudge, settings: dict[str, Any], *answers: str) -> list[float | None]:
    (found,) = reward({"reward": {"design": "arena", **settings}}, judge, rollouts(*answers)).rewards
    return found


def test_the_anchor_is_seeded_by_margin_zero() -> None:
    """Margins over the anchor 5: +4, -0.2, -0.1. At 0 it is the second seed, and the best meets 4.8."""
    judge = ScriptedJudge()
    rewarded(judge, {}, "5", "9", "4.8", "4.9")
    asked = {frozenset(pair[1:]) for pair in judge.asked}
    assert {"9", "4.8"} in asked and {"4.8", "4.9"} not in asked


def test_swiss_plays_as_many_rounds_as_halve_the_answers_to_one() -> None:
    judge = ScriptedJudge()
    rewarded(judge, {"topology": "swiss"}, *map(str, range(8)))
    assert len(judge.asked) == 24


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
    judge = Fickle()
    found = rewarded(judge, {"topology": "double_elimination", "reset": reset}, "1 a", "1 b")
    assert len(judge.asked) == calls
    assert found == ([0.0, 1.0] if reset else [1.0, 0.0])
