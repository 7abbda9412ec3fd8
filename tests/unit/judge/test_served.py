"""Judges behind a server: the lexical one judges as it does at hand, the random one gives every role its form."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Rubric, Task
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.corpus.world import FactQuestion, make_documents, read_article, write_question
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, RubricQuestion, ScoreQuestion
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import lexical_app, random_judge_app
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.pack import Pack
from tests.judges import REPOSITORY, answer_of, questions


@asynccontextmanager
async def over_the_wire(app: Starlette, pack: Pack, **settings: Any) -> AsyncIterator[ModelJudge]:
    async with serving(app) as url:
        endpoint = EndpointConfig(base_url=url)
        # Rubrics for tasks that a gate would have rejected are asked for, too.
        config = JudgeConfig(kind="model", endpoint=endpoint, failure_budget=1.0, **settings)
        judge = ModelJudge(await with_models(config), pack, seed=0)
        yield judge
        await judge.close()


def plain(value: object) -> object:
    """Of a rubric, what crosses the wire."""
    return [each.text for each in value.criteria] if isinstance(value, Rubric) else value


@pytest.mark.integration
@pytest.mark.parametrize("verdict", ["written", "token"])
async def test_every_question_gets_the_same_value(pack: Pack, verdict: str) -> None:
    """About a sound task, one about another place, and one that is none."""
    direct, source = LexicalJudge(), make_documents(random.Random(7), 60, source="world")[0]
    entity = read_article(source.text)
    assert entity is not None
    nouns = tuple(entity.facts)[:3]
    places = (FactQuestion(nouns, (), name) for name in (source.title, "Nowhere Mill"))
    counts = list[int]()
    async with over_the_wire(lexical_app(), pack, verdict=verdict) as judge:
        assert judge.identity.startswith(direct.identity)
        for text in (*map(write_question, places), "Tell me more, please."):
            task = Task(id="t", text=text, type="long_form_qa", document_id=source.id)
            about = questions(task, source)
            asked = [each for each in about if isinstance(each, GateQuestion | RubricQuestion)]
            rubric = (await direct.ask(RubricQuestion(task, [source]))).value
            answers = (source.text, "Its emblem is the heron.", source.text.partition(".")[0] + ".")
            for answer in answers if rubric and rubric.criteria else ():
                asked += [GradeQuestion(task, each, answer) for each in rubric.criteria]
                about = questions(task, source, rubric, answer_of(answer))
                asked += [each for each in about if isinstance(each, ScoreQuestion)]
            for question in asked:
                assert plain((await judge.ask(question)).value) == plain((await direct.ask(question)).value)
            counts.append(len(asked))
    assert counts[0] > 20 > counts[1] > 2


async def test_with_a_key_only_those_who_send_it_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    monkeypatch.setenv("WRONG_KEY", "other")

    async def named(variable: str | None, model: str | None = None) -> JudgeConfig:
        endpoint = EndpointConfig(base_url=url, api_key_env=variable, model=model)
        return await with_models(JudgeConfig(kind="model", endpoint=endpoint))

    async with serving(lexical_app("secret")) as url, aiohttp.ClientSession() as http:
        for variable in (None, "WRONG_KEY"):
            with pytest.raises(ConfigError, match=r"401.*an API key is needed.*api_key_env"):
                await named(variable)
        assert (await named("JUDGE_KEY")).endpoints[JudgeRole.GRADE].model == LexicalJudge().identity
        with pytest.raises(ConfigError, match="does not serve"):
            await named("JUDGE_KEY", "lexical-000000000000")
        async with http.post(f"{url}/chat/completions", json={}) as response:
            assert response.status == 401
        # A probe of the cluster sends no key.
        async with http.get(f"{url.removesuffix('/v1')}/health") as response:
            assert response.status == 200


@pytest.mark.parametrize("verdict", ["written", "token"])
@pytest.mark.parametrize("domain", ["wikipedia", "support"])
async def test_a_random_judge_gives_every_role_of_a_pack_a_reply_that_is_read(
    domain: str, verdict: str
) -> None:
    pack = load_pack(REPOSITORY / "prompts" / domain)
    async with over_the_wire(random_judge_app(), pack, verdict=verdict) as judge:
        for question in questions():
            assert (await judge.ask(question)).value is not None, question
