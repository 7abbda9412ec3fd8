"""Processes that share a step reward it as one process does: one budget, one judge."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from typing import Any

import pytest

from scope_selfplay.base.values import Check, Criterion, Rollout, Rubric
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.answers import Rewards
from scope_selfplay.designs.design import Peers
from scope_selfplay.designs.step import Rewarder, reward_metrics
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.rewards.measures import Measures, joined_values
from tests.unit.reward_designs.scripted import (
    RUBRIC,
    TASK,
    NoisyJudge,
    ScriptedJudge,
    finished_group,
    reward,
    rollouts,
)

RIGHT = TASK.model_copy(update={"reference": "9"})


class Meeting:
    """Where threads that stand for processes meet."""

    def __init__(self, processes: int) -> None:
        self.given: list[Any] = [None] * processes
        self.made: dict[str, Future[Any]] = {}
        self.barrier = threading.Barrier(processes, timeout=120)


class Member:
    def __init__(self, meeting: Meeting, number: int) -> None:
        self.number = number
        self._meeting = meeting

    async def gather(self, what: str, own: Any) -> list[Any]:
        self._meeting.given[self.number] = (what, own)
        await asyncio.to_thread(self._meeting.barrier.wait)
        everyone = list(self._meeting.given)
        await asyncio.to_thread(self._meeting.barrier.wait)
        assert {each for each, _ in everyone} == {what}
        return [value for _, value in everyone]

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        own: Future[Any] = Future()
        found = self._meeting.made.setdefault(name, own)
        if found is own:
            own.set_result(await make())
        return await asyncio.wrap_future(found)


def share_of_step(
    settings: dict[str, Any],
    groups: Sequence[tuple[int, list[Rollout]]],
    peers: Peers | None,
    judge: ScriptedJudge,
) -> tuple[list[Rewards], Measures]:
    async def step() -> tuple[list[Rewards], Measures]:
        config = SolverConfig.model_validate(settings)
        rewarder = Rewarder(config, MeteredJudge(judge), len, peers)
        opened = [finished_group(RIGHT, RUBRIC, group, ("g", number)) for number, group in groups]
        judged = await rewarder.judge_step(opened, ("s",))
        return [group.rewards for group in judged], reward_metrics(judged)

    return asyncio.run(step())


def in_processes(
    settings: dict[str, Any],
    groups: Sequence[list[Rollout]],
    processes: int,
    judge: ScriptedJudge | None = None,
) -> Any:
    """The rewards of all groups, dealt out in order, and the joined metrics."""
    judge = judge or NoisyJudge(bias=3.0)
    numbered, size, meeting = list(enumerate(groups)), len(groups) // processes, Meeting(processes)
    shares = [numbered[start : start + size] for start in range(0, len(groups), size)]
    peers = [Member(meeting, number) if processes > 1 else None for number in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        shared = list(pool.map(share_of_step, repeat(settings), shares, peers, repeat(judge)))
    rewards = [reward for own, _ in shared for reward in own]
    return rewards, joined_values([metrics for _, metrics in shared])


@pytest.mark.parametrize("budget", [0, 4, 6, 9, 1000])
def test_the_budget_of_routed_calls_is_spent_once_a_step(budget: int) -> None:
    # Prices 6, 1 and 3; "9" is right, so that the second group differs by itself.
    groups = [
        rollouts("8", "7", "6", "5", first=0),
        rollouts("8", "9", "6", "5", first=10),
        rollouts("8", "7", first=20),
        rollouts("8", "7", "6", first=30),
    ]
    settings = {"reward": "win_rate", "routing": {"by": "verifier", "budget": budget}}
    alone = in_processes(settings, groups, 1)
    for processes in (2, 4):
        rewards, metrics = in_processes(settings, groups, processes)
        assert rewards == alone[0] and metrics == pytest.approx(alone[1])
        assert (metrics["judge_calls"] > 0) == (budget > 0) and metrics["judge_calls"] <= budget


def test_what_a_step_says_about_the_judge_is_pooled_over_all_processes() -> None:
    rng = random.Random(5)
    groups = [rollouts(*map(str, rng.sample(range(10), 6)), first=10 * number) for number in range(8)]
    settings = {"reward": {"design": "balanced", "meetings": 2}}
    alone, metrics = in_processes(settings, groups, 1)
    for processes in (2, 4):
        together, joined = in_processes(settings, groups, processes)
        assert together == alone and joined == pytest.approx(metrics)
    apart = [reward for number in range(8) for reward in in_processes(settings, [groups[number]], 1)[0]]
    assert apart != alone


@pytest.mark.parametrize("preset", ["tournament_grpo_2_1_1", "pairwise"])
@pytest.mark.parametrize("writes", [True, False])
def test_the_first_process_that_needs_the_rubric_of_a_question_writes_it_for_all(
    preset: str, writes: bool
) -> None:
    groups, settings = [rollouts("2", "1"), rollouts("3", "1", first=10)], {"reward": preset}
    one, two = ScriptedJudge(writes=writes), ScriptedJudge(writes=writes)
    assert in_processes(settings, groups, 2, two) == in_processes(settings, groups, 1, one)
    assert [judge.asked.count(("rubric",)) for judge in (one, two)] == [1, 1]
    assert set(two.rubrics) == ({RUBRIC} if writes else set())
    # It is recorded once.
    records = reward(settings, ScriptedJudge(writes=writes), *groups).records
    assert [rubric for each in records for rubric in each.of(Rubric)] == [RUBRIC] * writes


TOURNAMENT = SolverConfig.model_validate({"reward": "tournament_grpo_2_1_1"})
OWN = Rubric(task_id="t1", criteria=(Criterion(text="first"),))


@pytest.mark.parametrize("preset", ["implicit", "explicit", "pairwise", "tournament_grpo_2_1_1"])
async def test_a_rubric_that_a_question_brought_is_used_and_none_is_written(preset: str) -> None:
    """Tournament-GRPO, section 4.1: rubrics of queries are made before training and stay as they are."""
    judge, question = ScriptedJudge(), TASK.model_copy(update={"document_id": ""})
    rewarder = Rewarder(SolverConfig.model_validate({"reward": preset}), MeteredJudge(judge), len)
    await rewarder.judge_step([finished_group(question, OWN, rollouts("2", "1"), ("g",))], ("s",))
    most = rewarder.design.most_calls(question, OWN, rewarder.design.entrants(rollouts("2", "1")))
    assert ("rubric",) not in judge.asked and 0 < len(judge.asked) <= most
    if preset in ("pairwise", "tournament_grpo_2_1_1"):
        assert set(judge.rubrics) == {OWN}


@pytest.mark.parametrize("document", ["", "d1"])
async def test_only_a_rubric_of_the_query_is_used_and_a_training_that_goes_on_keeps_it(document: str) -> None:
    judge, task = ScriptedJudge(), TASK.model_copy(update={"document_id": document})
    own = OWN if document else Rubric(task_id="t1", criteria=(Criterion(text="8", check=Check.BOXED),))
    rewarder = Rewarder(TOURNAMENT, MeteredJudge(judge), len)
    await rewarder.judge_step([finished_group(task, own, rollouts("2", "1"), ("g",))], ("s",))
    assert judge.asked.count(("rubric",)) == 1 and judge.rubrics == [RUBRIC] * 4

    # A training that goes on keeps its rubrics.
    later = Rewarder(TOURNAMENT, MeteredJudge(resumed := ScriptedJudge()), len)
    later.design.rubric_source.keep([RUBRIC])
    await later.judge_step([finished_group(task, own, rollouts("2", "1"), ("g",))], ("s",))
    assert ("rubric",) not in resumed.asked and resumed.rubrics == [RUBRIC] * 4
