"""A judge that follows a script, and groups of rollouts to show it."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from scope_selfplay.base.values import (
    Criterion,
    Fault,
    Key,
    Outcome,
    Passage,
    Priority,
    Role,
    Rollout,
    RolloutStatus,
    Rubric,
    Task,
    Turn,
    Verdict,
)
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.design import Arrivals, RolloutGroup
from scope_selfplay.designs.step import Rewarder, records_of, reward_metrics
from scope_selfplay.judge.account import JudgeRecords, MeteredJudge
from scope_selfplay.judge.protocol import (
    GradeQuestion,
    Judge,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from scope_selfplay.rewards.equations import group_advantages
from scope_selfplay.rewards.measures import joined_values

UNREADABLE = Verdict(value=None, fault=Fault.UNREADABLE)
TASK = Task(id="t1", text="Why?", type="long_form_qa", document_id="d1", reference="eight")
RUBRIC = Rubric(
    task_id="t1",
    criteria=(
        Criterion(text="first", priority=Priority.CRITICAL),
        Criterion(text="second", priority=Priority.IMPORTANT),
        Criterion(text="third", priority=Priority.BONUS),
    ),
)


class ScriptedJudge:
    """An answer is worth the number it begins with, from 0 to 10; a criterion, the number in its place.

    `fails` are texts: a call that shows one of them brings no verdict. `bias` is added to what is shown first.
    """

    identity = "scripted"

    def __init__(self, *, fails: Iterable[str] = (), bias: float = 0.0, writes: bool = True) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.rubrics: list[Rubric | None] = []
        self._fails = set(fails)
        self._bias = bias
        self._writes = writes

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case RubricQuestion():
                self.asked.append(("rubric",))
                return question.said(RUBRIC) if self._writes else Reply(None, UNREADABLE)
            case GradeQuestion(criterion=criterion, answer=answer):
                self.asked.append(("grade", answer))
                if answer in self._fails:
                    return Reply(None, UNREADABLE)
                return question.said(worth(answer, criterion) >= 5)
            case PairQuestion(first=first, second=second, style=style):
                self._see("compare", question.rubric, first, second)
                if self._fails & {str(first.answer), str(second.answer)}:
                    return Reply(None, UNREADABLE)
                scores = Outcome(worth(first.answer) + self._bias, worth(second.answer))
                return question.said(in_style(style, scores))
            case SelectQuestion(candidates=candidates, winners=winners):
                self._see("select", question.rubric, *candidates)
                if self._fails & {str(each.answer) for each in candidates}:
                    return Reply(None, UNREADABLE)
                order = sorted(range(len(candidates)), key=lambda number: -worth(candidates[number].answer))
                return question.said(order[:winners])
            case ScoreQuestion(rollout=rollout, rubric=rubric, scale=scale):
                answer = str(rollout.answer)
                self.asked.append(("score", answer))
                if answer in self._fails:
                    return Reply(None, UNREADABLE)
                value = worth(answer, rubric if isinstance(rubric, Criterion) else None)
                return question.said(value / 10 if scale.of_trace else value)
        raise AssertionError("rewards need no gate")

    def _see(self, what: str, rubric: Rubric | None, *rollouts: Rollout) -> None:
        self.asked.append((what, *(str(each.answer) for each in rollouts)))
        self.rubrics.append(rubric)


def worth(answer: str | None, criterion: Criterion | None = None) -> float:
    places = [each.text for each in RUBRIC.criteria]
    return float((answer or "").split()[places.index(criterion.text) if criterion else 0])


def in_style(style: Style, scores: Outcome) -> Outcome:
    """Both scores, or the shares of who is preferred."""
    return scores if style.is_scored else Outcome(scores.share, 1 - scores.share)


def rollout(
    number: int,
    answer: str | None,
    *,
    thought: str = "So.",
    searched: bool = True,
    failed: bool = False,
    tokens: int = 1,
) -> Rollout:
    """Thinks in every turn; with a search, the whole format holds where there is an answer."""
    said = f"<think>{thought}</think>" + (f"\n<answer>{answer}</answer>" if answer is not None else "")
    turns = [Turn(text=said, thinking=thought, ids=(7,) * tokens, logprobs=None)]
    if searched:
        found = Passage(id="p", title="P", text="p")
        looked = "<think>Let me see.</think>\n<search>why</search>"
        turns.insert(0, Turn(text=looked, thinking="Let me see.", query="why", passages=(found,)))
    return Rollout(
        id=f"r{number}",
        role=Role.SOLVER,
        checkpoint="S_0",
        subject_id=TASK.id,
        turns=tuple(turns),
        answer=answer,
        status=RolloutStatus.FAILED if failed else RolloutStatus.FINISHED,
    )


def rollouts(*answers: str | None, first: int = 0) -> list[Rollout]:
    return [rollout(first + number, answer) for number, answer in enumerate(answers)]


class NoisyJudge(ScriptedJudge):
    """Prefers what is shown first, and its scores have noise that depends on the two shown alone."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        found = await super().ask(question)
        assert isinstance(question, PairQuestion) and found.value is not None
        rng = random.Random(f"{question.first.id} {question.second.id}")
        mood = rng.gauss(0.0, 1.0)
        return replace(found, value=Outcome(*(score + mood + rng.gauss(0.0, 0.5) for score in found.value)))


class JudgeOfThoughts(ScriptedJudge):
    """A trace is worth the number that its last thought begins with."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        assert isinstance(question, PairQuestion)
        pair = (question.first, question.second)
        scores = Outcome(*(float(str(each.turns[-1].thinking).split()[0]) for each in pair))
        self.asked.append(("compare", *(each.id for each in pair)))
        return question.said(in_style(question.style, scores))


def all_right(thoughts: Sequence[int]) -> list[Rollout]:
    return [rollout(number, "8", thought=f"{thought} steps.") for number, thought in enumerate(thoughts)]


def open_group(
    size: int, *, deterministic: bool, task: Task = TASK, rubric: Rubric = RUBRIC, key: Key = ("g",)
) -> RolloutGroup:
    """A group whose rollouts are still to come, for a running event loop."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Rollout]] = [loop.create_future() for _ in range(size)]
    arrivals = Arrivals(size, deterministic=deterministic)
    return RolloutGroup(task, rubric, futures, arrivals, key, deterministic)


def finished_group(
    task: Task,
    rubric: Rubric,
    rollouts: Sequence[Rollout],
    key: Key = (),
    *,
    order: Sequence[int] | None = None,
) -> RolloutGroup:
    """Rollouts that are there already; they arrived in `order`, or by number."""
    group = open_group(len(rollouts), deterministic=True, task=task, rubric=rubric, key=key)
    for place, number in enumerate(order or range(len(rollouts))):
        group.rollouts[number].set_result(rollouts[number])
        group.arrivals.generated(number, place)
        group.arrivals.finish(number)
    return group


class StepRewards(NamedTuple):
    """What came out of a step, per group, and its metrics."""

    rewards: list[list[float | None]]
    records: list[JudgeRecords]
    metrics: dict[str, float | None]

    @property
    def teaching(self) -> list[bool]:
        """Whether each rollout has an advantage."""
        return [advantage != 0 for group in self.rewards for advantage in group_advantages(group)]


async def rewards_of_step(
    settings: SolverConfig, judge: Judge, groups: Sequence[RolloutGroup], key: Key = ("s",)
) -> StepRewards:
    rewarder = Rewarder(settings, MeteredJudge(judge), lambda text: len(text.split()))
    judged = await rewarder.judge_step(groups, key)
    return StepRewards(
        [group.rewards for group in judged], records_of(judged), joined_values([reward_metrics(judged)])
    )


def reward(
    settings: dict[str, Any],
    judge: ScriptedJudge,
    *groups: Sequence[Rollout],
    task: Task = TASK,
    orders: Sequence[Sequence[int] | None] | None = None,
) -> StepRewards:
    """A step of finished groups under `solver` settings."""

    async def step() -> StepRewards:
        opened = [
            finished_group(task, RUBRIC, group, ("g", number), order=orders[number] if orders else None)
            for number, group in enumerate(groups)
        ]
        return await rewards_of_step(SolverConfig.model_validate(settings), judge, opened)

    return asyncio.run(step())
