"""The lexical judge over the wire gives the same judgements as the lexical judge at hand."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Document, Fault, Rubric, Task
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.corpus.world import FactQuestion, make_documents, read_article, write_question
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    RubricQuestion,
    ScoreQuestion,
)
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import lexical_app
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.pack import Pack
from tests.judges import answer_of, questions


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return make_documents(random.Random(7), 60, source="world")


@asynccontextmanager
async def over_the_wire(documents: list[Document], pack: Pack, **settings: Any) -> AsyncIterator[ModelJudge]:
    async with serving(lexical_app(documents)) as url:
        # Rubrics for tasks that a gate would have rejected are asked for, too.
        config = JudgeConfig(
            kind="model", endpoint=EndpointConfig(base_url=url), failure_budget=1.0, **settings
        )
        judge = ModelJudge(await with_models(config), pack, seed=0)
        yield judge
        await judge.close()


def tasks(documents: list[Document]) -> list[tuple[Task, Document]]:
    """Sound tasks, tasks about the wrong document, and tasks that are none."""
    rng = random.Random(3)
    made: list[tuple[Task, Document]] = []
    for number, document in enumerate(documents[:20]):
        entity = read_article(document.text)
        assert entity is not None
        nouns = tuple(rng.sample(sorted(entity.facts), 3))
        anchor = "Nowhere Mill" if number % 3 == 1 else entity.name
        clear = write_question(FactQuestion(nouns, (), anchor))
        text = "Tell me more, please." if number % 5 == 4 else clear
        source = documents[-1 - number] if number % 3 == 2 else document
        made.append((Task(id=f"t{number}", text=text, type="long_form_qa", document_id=source.id), source))
    return made


def plain(value: object) -> object:
    """Of a rubric, what crosses the wire."""
    return [each.text for each in value.criteria] if isinstance(value, Rubric) else value


@pytest.mark.integration
@pytest.mark.parametrize("verdict", ["written", "token"])
async def test_every_question_gets_the_same_value(
    documents: list[Document], pack: Pack, verdict: str
) -> None:
    direct = LexicalJudge(documents)
    compared = 0
    async with over_the_wire(documents, pack, verdict=verdict) as judge:
        for task, source in tasks(documents):
            about = questions(task, source)
            asked = [each for each in about if isinstance(each, GateQuestion | RubricQuestion)]
            rubric = (await direct.ask(RubricQuestion(task, [source]))).value
            answers = [source.text, "Its emblem is the heron.", source.text.partition(".")[0] + "."]
            for answer in answers if rubric else ():
                asked += [GradeQuestion(task, each, answer) for each in rubric.criteria]
                about = questions(task, source, rubric, answer_of(answer))
                asked += [each for each in about if isinstance(each, ScoreQuestion)]
            for question in asked:
                assert plain((await judge.ask(question)).value) == plain((await direct.ask(question)).value)
                compared += 1
    assert compared > 200


async def test_the_model_is_named_after_the_corpus(documents: list[Document], pack: Pack) -> None:
    async with over_the_wire(documents, pack) as judge:
        assert judge.identity.startswith(LexicalJudge(documents).identity)
    async with serving(lexical_app(documents)) as url:
        other = JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url, model="lexical-000000000000"))
        with pytest.raises(ConfigError, match="does not serve"):
            await with_models(other)


async def test_with_a_key_only_those_who_send_it_are_answered(
    documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    monkeypatch.setenv("WRONG_KEY", "other")
    async with serving(lexical_app(documents, "secret")) as url, aiohttp.ClientSession() as http:
        for variable in (None, "WRONG_KEY"):
            endpoint = EndpointConfig(base_url=url, api_key_env=variable)
            with pytest.raises(ConfigError, match=r"401.*an API key is needed.*api_key_env"):
                await with_models(JudgeConfig(kind="model", endpoint=endpoint))
        known = JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url, api_key_env="JUDGE_KEY"))
        assert (await with_models(known)).endpoints[JudgeRole.GRADE].model
        async with http.post(f"{url}/chat/completions", json={}) as response:
            assert response.status == 401
        # A probe of the cluster sends no key.
        async with http.get(f"{url.removesuffix('/v1')}/health") as response:
            assert response.status == 200


async def test_its_metrics_count_what_it_answered_and_refused_and_need_no_key(
    documents: list[Document],
) -> None:
    request = {"model": LexicalJudge(documents).identity, "messages": [{"role": "user", "content": "Good?"}]}
    async with (
        serving(lexical_app(documents, "secret")) as url,
        aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as known,
        aiohttp.ClientSession() as prometheus,
    ):
        for more, status in (({"max_tokens": 1}, 200), ({}, 400), ({}, 400)):
            async with known.post(f"{url}/chat/completions", json={**request, **more}) as response:
                assert response.status == status
        async with prometheus.get(f"{url.removesuffix('/v1')}/metrics") as response:
            lines = (await response.text()).splitlines()
    counts = [line for line in lines if line.startswith("scope_judge_server_request_seconds_count")]
    assert sorted(counts) == [
        f'scope_judge_server_request_seconds_count{{outcome="{outcome}"}} {number}'
        for outcome, number in (("answered", 1.0), ("refused", 2.0))
    ]


async def test_a_prompt_it_cannot_read_is_refused(documents: list[Document], pack: Pack) -> None:
    body = {"body": "Judge: {{ task }} {{ answer }} {{ criterion }}"}
    prompts = [each.model_copy(update=body) if each.role == "grade" else each for each in pack.prompts]
    bare = pack.model_copy(update={"prompts": tuple(prompts)})
    async with over_the_wire(documents, bare) as judge:
        task, source = tasks(documents)[0]
        rubric = (await judge.ask(RubricQuestion(task, [source]))).value
        assert rubric is not None
        verdict = (await judge.ask(GradeQuestion(task, rubric.criteria[0], "An answer."))).verdict

    assert (verdict.value, verdict.fault) == (None, Fault.REFUSED)
