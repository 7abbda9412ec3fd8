"""The random judge: every role gets its form, by any pack, the same every time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.served import random_judge_app, random_reply
from scope_selfplay.net.serve import ServedRequest, serving
from scope_selfplay.prompts.folder import load_pack
from tests.judges import REPOSITORY, questions


@asynccontextmanager
async def rehearsing(domain: str, **settings: Any) -> AsyncIterator[ModelJudge]:
    async with serving(random_judge_app()) as url:
        config = JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url), **settings)
        pack = load_pack(REPOSITORY / "prompts" / domain)
        judge = ModelJudge(await with_models(config), pack, seed=0)
        yield judge
        await judge.close()


@pytest.mark.parametrize("verdict", ["written", "token"])
@pytest.mark.parametrize("domain", ["wikipedia", "support"])
async def test_every_role_of_a_pack_gets_a_reply_that_is_read(domain: str, verdict: str) -> None:
    async with rehearsing(domain, verdict=verdict) as judge:
        for question in questions():
            assert (await judge.ask(question)).value is not None, question


def served(prompt: str, seed: int = 0) -> ServedRequest:
    return ServedRequest(prompt, (), {"seed": seed})


async def test_the_draw_follows_from_the_prompt_and_the_seed() -> None:
    prompt = "Write <score>\n<<<task ab>>>\nWhy?\n<<<end ab>>>"
    texts = [(await random_reply(served(prompt, seed))).text for seed in range(200)]
    assert texts == [(await random_reply(served(prompt, seed))).text for seed in range(200)]
    passed = sum("<score>1</score>" in text for text in texts) / len(texts)
    assert 0.7 < passed < 0.9


async def test_a_prompt_that_asks_for_no_known_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"asks for this form of reply"):
        await random_reply(served("How are you?"))
