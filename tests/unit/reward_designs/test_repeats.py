"""The repeats of a group tournament are tournaments of their own: shuffled, seeded and judged anew."""

import asyncio
from pathlib import Path
from typing import Any

from scope_selfplay.base.values import Selection
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.step import open_rewarder, records_of
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.fences import read_fences
from scope_selfplay.judge.protocol import SelectQuestion
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.testing.chat_server import FakeServer
from tests.judges import TASK, JudgeOver
from tests.unit.reward_designs.scripted import RUBRIC, ScriptedJudge, finished_group, reward, rollouts

REWARD: dict[str, Any] = {"design": "tournament_grpo_2_1_1", "repeats": 8, "rubrics": "none"}
ANSWERS = [f"{number} is the answer" for number in range(1, 9)]


def first_shown(request: ServedRequest) -> ServedReply:
    """A judge that always picks what it is shown first."""
    first = next(each for each in read_fences(request.prompt) if each.name == "candidate")
    return ServedReply(f'{{"winners": ["{first.mark}"]}}')


def test_records_hold_the_order_shown_and_the_repeat() -> None:
    judge = ScriptedJudge()
    found = reward({"reward": REWARD}, judge, rollouts(*ANSWERS))
    selections = [selection for records in found.records for selection in records.of(Selection)]
    by_id = {f"r{number}": answer for number, answer in enumerate(ANSWERS)}
    recorded = [tuple(by_id[name] for name in selection.candidate_ids) for selection in selections]
    assert sorted(recorded) == sorted(asked[1:] for asked in judge.asked)
    assert [sum(each.repeat == repeat for each in selections) for repeat in range(8)] == [7] * 8


async def test_every_match_of_every_repeat_is_a_call_of_its_own(judge_over: JudgeOver) -> None:
    """Eight answers, eight repeats: 56 matches, 56 calls, with 56 seeds; places are shown by chance."""
    fake = FakeServer(first_shown)
    # So patient that it asks a busy machine for no sign of life.
    async with judge_over(fake, patience=100.0) as judge:
        rewarder = open_rewarder(SolverConfig.model_validate({"reward": REWARD}), MeteredJudge(judge), len)
        group = finished_group(TASK, RUBRIC, rollouts(*ANSWERS), ("g",))
        judged = await rewarder.judge_step([group], ("s",))

    assert len(fake.requests) == 56
    assert len({request.body["seed"] for request in fake.requests}) == 56
    (records,) = records_of(judged)
    leads = [selection.candidate_ids[0] for selection in records.of(Selection)]
    assert len(set(leads)) == 8


async def test_kept_replies_serve_a_repeated_step_and_not_another_repeat(
    judge_over: JudgeOver, tmp_path: Path
) -> None:
    fake = FakeServer(first_shown)
    pair = rollouts("One.", "Two.")
    async with judge_over(fake, cache=tmp_path / "judgements.sqlite") as judge:
        for _ in range(2):
            await asyncio.gather(
                *(judge.ask(SelectQuestion(TASK, None, pair, 1, repeat=repeat)) for repeat in range(3))
            )

    assert len(fake.requests) == 3
