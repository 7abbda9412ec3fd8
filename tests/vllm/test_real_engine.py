"""Our client and judge against a real vLLM: wire, structured outputs, log-probabilities, prefix caching."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Criterion, Fault, Finish, Gate
from scope_selfplay.config.judge import CallConfig, EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, PairQuestion, Style
from scope_selfplay.net.chat import ChatClient, ChatFault, ChatRequest
from scope_selfplay.prompts.folder import load_pack
from tests.integration.k8s.test_run_folders import asked
from tests.judges import CRITERION, REPOSITORY, TASK, rollout
from tests.vllm.conftest import MODEL, metric_names, read_metric

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

SHORT = {"calls": dict.fromkeys(JudgeRole, CallConfig(max_tokens=24))}


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
            # To this vocabulary Yes and No, which answer the guard, are no single tokens.
            "guard": False,
            **settings,
        }
    )
    pack = load_pack(REPOSITORY / "prompts" / "wikipedia")
    return ModelJudge(await with_models(config), pack, seed=0)


async def test_a_completion_is_counted_cut_at_its_tokens_and_repeated_by_its_seed(client: ChatClient) -> None:
    request = ChatRequest("Say something.", max_tokens=8, temperature=1.0, seed=7)
    first, second, other = [await client.complete(request._replace(seed=seed)) for seed in (7, 7, 8)]

    assert first.finish is Finish.LENGTH and first.tokens_out == 8
    assert 5 < first.tokens_in < 50 and first.text
    assert first.text == second.text != other.text


@pytest.mark.parametrize("choices", [("1", "0"), ("A", "B", "T")])
async def test_one_constrained_token_has_the_odds_of_every_choice(
    client: ChatClient, choices: tuple[str, ...]
) -> None:
    request = ChatRequest("Which one?", max_tokens=1, choices=choices)
    reply = await client.complete(request)

    assert reply.text in choices and reply.tokens_out == 1
    assert set(choices) <= set(reply.odds), "the engine's log-probabilities are those of the allowed tokens"
    assert math.isclose(sum(reply.odds[each] for each in choices), 1.0, abs_tol=0.01)
    assert reply.text == max(choices, key=lambda each: reply.odds[each])


async def test_what_the_engine_refuses_has_its_type(engine: str, client: ChatClient) -> None:
    with pytest.raises(ChatFault) as raised:
        await client.complete(ChatRequest("word " * 9000, max_tokens=8))
    assert raised.value.fault is Fault.REFUSED
    async with ChatClient(engine, model="another") as stranger:
        with pytest.raises(ConfigError, match="another"):
            await stranger.complete(ChatRequest("Hello.", max_tokens=1))


async def test_a_judge_of_one_token_gives_probabilities_and_one_that_writes_is_unreadable(
    engine: str,
) -> None:
    judge = await _judge(engine, verdict="token")
    grade, gate, pair, scores = await asyncio.gather(
        judge.ask(GradeQuestion(TASK, CRITERION, "Because of floods.")),
        judge.ask(GateQuestion(TASK, Gate.ENTITY, None)),
        judge.ask(PairQuestion(TASK, rollout(1, "One."), rollout(2, "Two."), style=Style.PREFERENCE)),
        judge.ask(PairQuestion(TASK, rollout(1, "One."), rollout(2, "Two."), style=Style.SCORES)),
    )

    written = await (await _judge(engine)).ask(GradeQuestion(TASK, CRITERION, "Because of floods."))
    found = written.verdict
    assert (found.value, found.fault, found.attempts) == (None, Fault.UNREADABLE, 3)
    for verdict in (grade, gate):
        assert verdict.value is not None and verdict.verdict.tokens_out == 1
        likely = verdict.verdict.probability
        assert likely is not None and (likely > 0.5) is verdict.value
    assert pair.value is not None and math.isclose(sum(pair.value), 1.0)
    assert scores.value is not None and all(0 <= each <= 10 for each in scores.value)


async def test_the_criteria_of_one_answer_share_their_prefix_in_the_engine(engine: str) -> None:
    judge = await _judge(engine, verdict="token", concurrency=1)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    before = [read_metric(engine, name) for name in names]
    answer = "The dam was built because floods had destroyed the lower town in two springs. " * 8
    criteria = [Criterion(text=f"Identifies cause number {n} of the floods.") for n in range(4)]
    await asyncio.gather(*(judge.ask(GradeQuestion(TASK, criterion, answer)) for criterion in criteria))
    asked, hit = (read_metric(engine, name) - old for name, old in zip(names, before, strict=True))

    # Three of four prompts can hit on nearly everything.
    assert hit > 0.6 * asked > 0


async def test_a_pattern_is_kept_to_and_the_papers_16384_tokens_fit_a_smaller_context(engine: str) -> None:
    named = await with_models(JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=engine)))
    context = named.endpoint_of(JudgeRole.GRADE).context
    assert context == 4096
    request = ChatRequest("Which one?", max_tokens=16_384, temperature=1.0, pattern="yes|no")
    async with ChatClient(engine, model=MODEL, context=context) as client:
        assert (await client.complete(request)).text in ("yes", "no")


def test_the_engine_exports_what_the_dashboard_shows(engine: str) -> None:
    shown = {name for name in asked() if name.startswith("vllm:")}
    assert shown and shown <= metric_names(engine)
