"""Every design with the judges that ship: at hand, and over the wire of a model."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from scope_selfplay.base.values import Rollout, Rubric, Task
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.corpus.world import BY_NOUN, FactQuestion, make_documents, read_article, write_question
from scope_selfplay.designs.design import RolloutGroup
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import Judge, Question, Reply, RubricQuestion
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import lexical_app
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.pack import Pack
from tests.unit.reward_designs.scripted import JUDGED, StepRewards, finished_group, rewards_of_step, rollout

DOCUMENTS = make_documents(random.Random(7), 20, source="world")


async def a_group() -> tuple[Task, Rubric, list[Rollout]]:
    """Answers that state three, one and none of three facts."""
    entity = read_article(DOCUMENTS[0].text)
    assert entity is not None
    facts = list(entity.facts.items())[:3]
    text = write_question(FactQuestion(tuple(noun for noun, _ in facts), (), entity.name))
    task = Task(id="t1", text=text, type="long_form_qa", document_id=DOCUMENTS[0].id)
    rubric = (await LexicalJudge(DOCUMENTS).ask(RubricQuestion(task, (DOCUMENTS[0],)))).value
    assert rubric is not None
    said = [BY_NOUN[noun].sentence(value) for noun, value in facts]
    answers = (" ".join(said), said[0], "Its river is dry.")
    return task, rubric, [rollout(number, answer) for number, answer in enumerate(answers)]


async def rewards(preset: str, judge: Judge) -> list[float | None]:
    task, rubric, rollouts = await a_group()
    found = await step(preset, judge, [finished_group(task, rubric, rollouts, ("g",))])
    assert found.metrics["judge_missing"] == 0.0 and found.metrics["judge_calls"]
    return found.rewards[0]


async def step(preset: str, judge: Judge, groups: Sequence[RolloutGroup]) -> StepRewards:
    return await rewards_of_step(SolverConfig.model_validate({"reward": preset}), judge, groups)


@pytest.mark.parametrize("preset", ["rubric", *JUDGED])
async def test_a_judge_over_the_wire_gives_the_rewards_of_the_judge_at_hand(preset: str, pack: Pack) -> None:
    at_hand = await rewards(preset, LexicalJudge(DOCUMENTS))
    async with serving(lexical_app(DOCUMENTS)) as url:
        config = JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url), failure_budget=1.0)
        judge = ModelJudge(await with_models(config), pack, seed=0)
        over_the_wire = await rewards(preset, judge)
        await judge.close()
    assert over_the_wire == pytest.approx(at_hand, abs=1e-3) and None not in at_hand
    assert at_hand == sorted(at_hand, key=float, reverse=True) and at_hand[0] != at_hand[-1]  # type: ignore[arg-type]


async def test_a_step_of_many_groups_is_judged_side_by_side() -> None:
    """No group waits for another: all their calls are on their way at the same time."""
    on_their_way: set[int] = set()
    most = 0

    class Counting(LexicalJudge):
        async def ask(self, question: Question[Any]) -> Reply[Any]:
            nonlocal most
            call = object()
            on_their_way.add(id(call))
            most = max(most, len(on_their_way))
            for _ in range(50):
                await asyncio.sleep(0)
            on_their_way.remove(id(call))
            return await super().ask(question)

    task, rubric, rollouts = await a_group()
    groups = [finished_group(task, rubric, rollouts, ("g", number)) for number in range(20)]
    found = await step("balanced", Counting(DOCUMENTS), groups)
    assert most == found.metrics["judge_calls"]
