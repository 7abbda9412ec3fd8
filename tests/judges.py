"""Model judges against the shipped fake, on loopback."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.values import Criterion, Document, Gate, Priority, Role, Rollout, Rubric, Task, Turn
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.fences import Fenced
from scope_selfplay.judge.model import JudgementCache, ModelJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from scope_selfplay.net.serve import Responder, ServedReply, ServedRequest
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer

REPOSITORY = Path(__file__).resolve().parents[1]

TASK = Task(id="task-1", text="Why was the dam built?", type="long_form_qa", document_id="d1")
DOCUMENT = Document(id="d1", title="The dam", text="The dam of 1936 was built against floods.")
CRITERION = Criterion(text="Identifies the floods as the reason.")

JudgeOver = Callable[..., AbstractAsyncContextManager[ModelJudge]]


@pytest.fixture(scope="session")
def pack() -> Pack:
    return load_pack(REPOSITORY / "prompts" / "wikipedia")


@asynccontextmanager
async def judge_over_pack(
    pack: Pack, *served: FakeServer | Responder, cache: Path | None = None, seed: int = 0, **settings: Any
) -> AsyncIterator[ModelJudge]:
    fakes = [each if isinstance(each, FakeServer) else FakeServer(each) for each in served]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(fake.serving()) for fake in fakes]
        endpoint = EndpointConfig(base_url=tuple(urls), model=FAKE_MODEL, **settings.pop("endpoint", {}))
        given = {"endpoint": endpoint, "failure_budget": 1.0, **settings}
        config = JudgeConfig.model_validate({"kind": "model", **given})
        kept = None if cache is None else JudgementCache(cache)
        judge = ModelJudge(config, pack, seed=seed, cache=kept)
        try:
            yield judge
        finally:
            await judge.close()
            if kept is not None:
                kept.close()


@pytest.fixture
def judge_over(pack: Pack) -> JudgeOver:
    """`async with judge_over(*fakes or responders, cache=path, **JudgeConfig fields) as judge`."""
    return partial(judge_over_pack, pack)


Ask = Callable[..., Awaitable[Reply[Any]]]


@pytest.fixture
def ask(judge_over: JudgeOver) -> Ask:
    """`await ask(fake or responder, question, **JudgeConfig fields)` for a judge that is asked one thing."""

    async def ask_once(
        served: FakeServer | Responder, question: Question[Any], **settings: Any
    ) -> Reply[Any]:
        async with judge_over(served, **settings) as judge:
            return await judge.ask(question)

    return ask_once


def always(text: str) -> Responder:
    """A judge that gives every request the same completion."""
    return lambda request: ServedReply(text)


def sound(request: ServedRequest) -> ServedReply:
    """A judge whose verdict follows from the prompt alone."""
    digit = hashlib.sha256(request.prompt.encode()).digest()[0] & 1
    return ServedReply(f"<think>so</think><score>{digit}</score>")


def rollout(number: int, answer: str | None, *, thinking: str = "Let me see.") -> Rollout:
    return Rollout(
        id=f"r{number}",
        role=Role.SOLVER,
        checkpoint="S_0",
        subject_id=TASK.id,
        turns=(Turn(thinking=thinking, query="dam", passages=()), Turn(thinking="So.")),
        answer=answer,
    )


def answer_of(text: str | None, name: object = 0) -> Rollout:
    """An answer without a trace."""
    return Rollout.of_answer(text, f"r{name}")


ASKED = TASK.model_copy(update={"reference": "Floods."})
FURTHER = Criterion(text="Names the year.", priority=Priority.BONUS, title="Year", dimension="facts")
RUBRIC = Rubric(task_id=TASK.id, criteria=(CRITERION, FURTHER))
ONE, OTHER = rollout(1, "Because of floods."), rollout(2, "For power.")


def questions(
    task: Task = ASKED,
    document: Document = DOCUMENT,
    rubric: Rubric = RUBRIC,
    one: Rollout = ONE,
    other: Rollout = OTHER,
    *further: Rollout,
) -> list[Question[Any]]:
    """All that a judge is asked; it selects from `further` ones too."""
    criterion = rubric.criteria[0]
    return [
        *(GateQuestion(task, gate, document) for gate in Gate),
        RubricQuestion(task, [document, document]),
        RubricQuestion(task, ()),
        GradeQuestion(task, criterion, one.answer or ""),
        *(PairQuestion(task, one, other, style=style, rubric=rubric) for style in Style),
        PairQuestion(task, one, other, style=Style.ANSWERS, rubric=criterion),
        SelectQuestion(task, rubric, [one, other, *further], 1, repeat=2),
        *(
            ScoreQuestion(task, one, criterion if scale is Scale.EXPLICIT else rubric, scale=scale)
            for scale in Scale
        ),
    ]


def all_fences(fences: tuple[Fenced, ...]) -> list[Fenced]:
    """Those within others too."""
    return [each for fence in fences for each in (fence, *all_fences(fence.inner))]
