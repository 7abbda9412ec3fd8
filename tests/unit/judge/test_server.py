"""The lexical judge over the wire gives the same judgements as the lexical judge at hand."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from scope_selfplay.config import EndpointConfig, JudgeConfig
from scope_selfplay.embedded.language import FactQuestion, write_question
from scope_selfplay.embedded.world import make_documents, read_article
from scope_selfplay.errors import ConfigError
from scope_selfplay.gates import Gate
from scope_selfplay.judge import LexicalJudge, Scale, Style
from scope_selfplay.judge.cache import JudgementCache
from scope_selfplay.judge.endpoint_pool import with_models
from scope_selfplay.judge.lexical import QUERY_CRITERIA
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.server import lexical_app
from scope_selfplay.prompts import Pack
from scope_selfplay.schemas import Document, Fault, Role, Rollout, Task
from scope_selfplay.wire.serving import serving


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
        judge = ModelJudge(await with_models(config), pack, seed=0, cache=JudgementCache(None))
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
        links: tuple[str, ...] = ()
        anchor = entity.name
        if number % 3 == 1:
            anchor = "Nowhere Mill"
        text = write_question(FactQuestion(nouns, links, anchor))
        if number % 5 == 4:
            text = "Tell me more, please."
        source = documents[-1 - number] if number % 3 == 2 else document
        made.append((Task(id=f"t{number}", text=text, type="long_form_qa", document_id=source.id), source))
    return made


def solver(number: int, answer: str | None) -> Rollout:
    return Rollout(id=f"r{number}", role=Role.SOLVER, checkpoint="", subject_id="", turns=(), answer=answer)


@pytest.mark.integration
@pytest.mark.parametrize("verdict", ["written", "token"])
async def test_gates_rubrics_and_grades_are_the_same(
    documents: list[Document], pack: Pack, verdict: str
) -> None:
    direct = LexicalJudge(documents)
    compared = 0
    async with over_the_wire(documents, pack, verdict=verdict) as judge:
        for task, source in tasks(documents):
            for gate in Gate:
                here, there = await direct.gate(gate, task, source), await judge.gate(gate, task, source)
                assert here.value is there.value
            rubric, other = (
                await direct.write_rubric(task, [source]),
                await judge.write_rubric(task, [source]),
            )
            assert (rubric is None) == (other is None)
            if rubric is None or other is None:
                continue
            assert [each.text for each in rubric.criteria] == [each.text for each in other.criteria]
            answers = [source.text, "Its emblem is the heron.", source.text.partition(".")[0] + "."]
            for answer in answers:
                for criterion in rubric.criteria:
                    here = await direct.grade(task, criterion, answer, key=())
                    there = await judge.grade(task, criterion, answer, key=())
                    assert here.value is there.value
                    compared += 1
    assert compared > 50


async def test_comparisons_and_scores_agree(documents: list[Document], pack: Pack) -> None:
    direct = LexicalJudge(documents)
    task, source = tasks(documents)[0]
    rubric = await direct.write_rubric(task, [source])
    assert rubric is not None
    good, poor = solver(1, source.text), solver(2, "Its emblem is the heron.")
    for verdict in ("written", "token"):
        async with over_the_wire(documents, pack, verdict=verdict) as judge:
            for style in Style:
                for pair, better in (((good, poor), True), ((poor, good), False)):
                    outcome = (await judge.compare(task, *pair, style=style, rubric=rubric)).outcome
                    assert outcome is not None and (outcome.first > outcome.second) is better
    async with over_the_wire(documents, pack) as judge:
        assert (await judge.select(task, rubric, [poor, good, poor], 1)).numbers == [1]
        for scale, against in ((Scale.IMPLICIT, rubric), (Scale.EXPLICIT, rubric.criteria[0])):
            here = await direct.score(task, solver(0, source.text), against, scale=scale)
            assert (await judge.score(task, solver(0, source.text), against, scale=scale)).value == here.value
        served, own = [
            await asked.score(task, solver(0, source.text), None, scale=Scale.CORRECTNESS)
            for asked in (judge, direct)
        ]
        assert served.value == own.value is not None
        dimensions = await judge.write_rubric(task, [])
        assert dimensions is not None and len(dimensions.criteria) == QUERY_CRITERIA
        expected = await direct.write_rubric(task, [])
        assert expected is not None
        assert [each.text for each in expected.criteria] == [each.text for each in dimensions.criteria]


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
        assert (await with_models(known)).endpoints.grade is not None
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
    bare = pack.model_copy(
        update={
            "prompts": tuple(
                prompt.model_copy(update={"body": "Judge: {{ task }} {{ answer }} {{ criterion }}"})
                if prompt.role == "grade"
                else prompt
                for prompt in pack.prompts
            )
        }
    )
    async with over_the_wire(documents, bare) as judge:
        task, source = tasks(documents)[0]
        rubric = await judge.write_rubric(task, [source])
        assert rubric is not None
        verdict = await judge.grade(task, rubric.criteria[0], "An answer.", key=())

    assert (verdict.value, verdict.fault) == (None, Fault.REFUSED)
