"""Model judges against the shipped fake, on loopback."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.values import Criterion, Document, Role, Rollout, Task, Turn
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.model import JudgementCache, ModelJudge
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
    pack: Pack, served: FakeServer | Responder, *, cache: Path | None = None, seed: int = 0, **settings: Any
) -> AsyncIterator[ModelJudge]:
    fake = served if isinstance(served, FakeServer) else FakeServer(served)
    async with fake.serving() as url:
        endpoint = EndpointConfig(base_url=url, model=FAKE_MODEL, **settings.pop("endpoint", {}))
        given = {"endpoint": endpoint, "patience": 5.0, "failure_budget": 1.0, **settings}
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
    """`async with judge_over(fake or responder, cache=path, **JudgeConfig fields) as judge`."""
    return partial(judge_over_pack, pack)


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
