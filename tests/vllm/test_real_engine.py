"""Our client and judge against a real vLLM: wire, structured outputs, log-probabilities, prefix caching."""

import asyncio
import math
import re
from collections.abc import AsyncIterator

import pytest

from scope_selfplay.config import CallConfig, EndpointConfig, JudgeConfig
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.errors import ConfigError
from scope_selfplay.gates import Gate
from scope_selfplay.judge import Style
from scope_selfplay.judge.cache import JudgementCache
from scope_selfplay.judge.chat_client import ChatClient, ChatFault, ChatRequest
from scope_selfplay.judge.endpoint_pool import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.prompts import load_pack
from scope_selfplay.schemas import Criterion, Fault, Finish
from tests.judges import CRITERION, REPOSITORY, TASK, rollout
from tests.unit.k8s.test_monitoring import asked
from tests.vllm.conftest import MODEL, metric_names, read_metric

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

SECONDS = 300.0
SHORT = {
    name: CallConfig(max_tokens=24) for name in ("gate_call", "rubric_call", "grade_call", "compare_call")
}


@pytest.fixture
async def client(engine: str) -> AsyncIterator[ChatClient]:
    async with ChatClient(engine, model=MODEL) as client:
        yield client


async def _judge(engine: str, **settings: object) -> ModelJudge:
    config = JudgeConfig.model_validate(
        {
            "kind": "model",
            "endpoint": EndpointConfig(base_url=engine),
            "failure_budget": 1.0,
            **SHORT,
            **settings,
        }
    )
    pack = load_pack(REPOSITORY / "prompts" / "wikipedia")
    return ModelJudge(await with_models(config), pack, seed=0, cache=JudgementCache(None))


async def test_a_chat_completion_is_counted_and_cut_at_its_tokens(client: ChatClient) -> None:
    reply = await client.complete(
        ChatRequest("Say something.", max_tokens=8, temperature=1.0), seconds=SECONDS
    )

    assert reply.finish is Finish.LENGTH and reply.tokens_out == 8
    assert 5 < reply.tokens_in < 50 and reply.text


async def test_a_seed_repeats_its_completion(client: ChatClient) -> None:
    request = ChatRequest("Say something.", max_tokens=12, temperature=1.0, seed=7)
    first, second, other = [
        (await client.complete(each, seconds=SECONDS)).text
        for each in (request, request, request._replace(seed=8))
    ]

    assert first == second != other


@pytest.mark.parametrize("choices", [("1", "0"), ("A", "B", "T")])
async def test_one_constrained_token_has_the_odds_of_every_choice(
    client: ChatClient, choices: tuple[str, ...]
) -> None:
    request = ChatRequest("Which one?", max_tokens=1, choices=choices)
    reply = await client.complete(request, seconds=SECONDS)

    assert reply.text in choices and reply.tokens_out == 1
    assert set(choices) <= set(reply.odds), "the engine's log-probabilities are those of the allowed tokens"
    assert math.isclose(sum(reply.odds[each] for each in choices), 1.0, abs_tol=0.01)
    assert reply.text == max(choices, key=lambda each: reply.odds[each])


async def test_a_pattern_is_kept_to(client: ChatClient) -> None:
    pattern = r"<score>[01]</score>"
    reply = await client.complete(ChatRequest("Score it.", 64, 1.0, pattern=pattern), seconds=SECONDS)

    assert re.fullmatch(pattern, reply.text)


async def test_what_the_engine_refuses_has_its_type(engine: str, client: ChatClient) -> None:
    with pytest.raises(ChatFault) as raised:
        await client.complete(ChatRequest("word " * 9000, max_tokens=8), seconds=SECONDS)
    assert raised.value.fault is Fault.REFUSED
    async with ChatClient(engine, model="another") as stranger:
        with pytest.raises(ConfigError, match="another"):
            await stranger.complete(ChatRequest("Hello.", max_tokens=1), seconds=SECONDS)


async def test_a_judge_of_one_token_gives_probabilities(engine: str) -> None:
    judge = await _judge(engine, verdict="token")
    grade, gate, pair, scores = await asyncio.gather(
        judge.grade(TASK, CRITERION, "Because of floods.", key=(0,)),
        judge.gate(Gate.ENTITY, TASK, None),
        judge.compare(TASK, rollout(1, "One."), rollout(2, "Two."), style=Style.PREFERENCE),
        judge.compare(TASK, rollout(1, "One."), rollout(2, "Two."), style=Style.SCORES),
    )

    for verdict in (grade, gate):
        assert verdict.value is not None and verdict.tokens_out == 1
        assert verdict.probability is not None and (verdict.probability > 0.5) is verdict.value
    assert pair.outcome is not None and math.isclose(sum(pair.outcome), 1.0)
    assert scores.outcome is not None and all(0 <= each <= 10 for each in scores.outcome)


async def test_a_random_model_that_writes_is_unreadable_and_nothing_else(engine: str) -> None:
    judge = await _judge(engine)
    verdict = await judge.grade(TASK, CRITERION, "Because of floods.", key=(0,))

    assert (verdict.value, verdict.fault, verdict.attempts) == (None, Fault.UNREADABLE, 3)


async def test_the_criteria_of_one_answer_share_their_prefix_in_the_engine(engine: str) -> None:
    judge = await _judge(engine, verdict="token", concurrency=1)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    before = [read_metric(engine, name) for name in names]
    answer = "The dam was built because floods had destroyed the lower town in two springs. " * 8
    criteria = [Criterion(text=f"Identifies cause number {n} of the floods.") for n in range(4)]
    await asyncio.gather(*(judge.grade(TASK, criterion, answer, key=(0,)) for criterion in criteria))
    asked, hit = (read_metric(engine, name) - old for name, old in zip(names, before, strict=True))

    assert asked > 0
    print(f"prefix cache: {hit:.0f} of {asked:.0f} prompt tokens, {hit / asked:.0%}")
    # Three of four prompts can hit on nearly everything.
    assert hit / asked > 0.6


async def test_the_papers_16384_tokens_fit_a_smaller_context(engine: str) -> None:
    named = await with_models(JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=engine)))
    context = named.endpoint_of(JudgeRole.GRADE).context
    assert context == 4096
    request = ChatRequest("Which one?", max_tokens=16_384, temperature=1.0, pattern="yes|no")
    async with ChatClient(engine, model=MODEL, context=context) as client:
        assert (await client.complete(request, seconds=SECONDS)).text in ("yes", "no")


def test_the_engine_exports_what_the_dashboard_shows(engine: str) -> None:
    shown = {name for name in asked() if name.startswith("vllm:")}
    assert shown and shown <= metric_names(engine)
