"""Faults of a judge, injected and counted: what is read equals the undisturbed verdict, 0 wrong rewards."""

import asyncio
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, JudgeError
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import Fault, Verdict
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.judge.endpoint import endpoints_per_loop
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion
from scope_selfplay.net.client import SILENCE
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.testing.chat_server import (
    FAKE_MODEL,
    GARBAGE,
    TRANSPORT,
    FakeServer,
    FaultKind,
    FaultPlan,
)
from tests.judges import CRITERION, TASK, JudgeOver, sound
from tests.unit.judge.test_cache import rows_in

pytestmark = pytest.mark.integration

Report = Callable[[str, object], None]


def answers(count: int) -> list[str]:
    return [f"Because of flood number {n}." for n in range(count)]


async def grade_all(judge: ModelJudge, texts: Sequence[str]) -> list[Verdict]:
    asked = (judge.ask(GradeQuestion(TASK, CRITERION, text)) for text in texts)
    return [reply.verdict for reply in await asyncio.gather(*asked)]


async def undisturbed(judge_over: JudgeOver, texts: Sequence[str]) -> list[bool | None]:
    async with judge_over(sound) as judge:
        return [verdict.value for verdict in await grade_all(judge, texts)]


def check(
    verdicts: Sequence[Verdict], truth: Sequence[bool | None], fake: FakeServer, report: Report
) -> Counter[str]:
    """The oracle: none wrong, none of a fault with a value, none lost."""
    wrong = sum(v.value is not None and v.value is not t for v, t in zip(verdicts, truth, strict=True))
    missing = Counter(verdict.fault for verdict in verdicts if verdict.value is None)
    injected = fake.injected.total()
    report("injected", injected)
    report("read", len(verdicts) - missing.total())
    report("missing", missing.total())
    report("wrong", wrong)
    assert wrong == 0 and None not in missing and injected > 0
    assert all((verdict.value is None) == (verdict.fault is not None) for verdict in verdicts)
    return Counter(str(fault) for fault in missing.elements())


async def missing_under(
    plan: FaultPlan, judge_over: JudgeOver, count: int, report: Report, **settings: object
) -> tuple[Counter[str], FakeServer, ModelJudge]:
    """Which faults are left of so many judgements; none that was read is wrong."""
    texts = answers(count)
    truth = await undisturbed(judge_over, texts)
    fake = FakeServer(sound, plan=plan, drip=0.05)
    async with judge_over(fake, **settings) as judge:
        return check(await grade_all(judge, texts), truth, fake, report), fake, judge


@pytest.mark.fault(2)
@pytest.mark.parametrize("kind", [*GARBAGE, FaultKind.REFUSAL])
async def test_one_kind_of_garbage_never_becomes_a_verdict(
    judge_over: JudgeOver, kind: FaultKind, record_property: Report
) -> None:
    missing, _, _ = await missing_under(FaultPlan({kind: 0.3}), judge_over, 80, record_property)
    assert set(missing) <= {Fault.UNREADABLE, Fault.REFUSED}


@pytest.mark.fault(2)
async def test_a_tenth_of_garbage_is_survived(judge_over: JudgeOver, record_property: Report) -> None:
    plan = FaultPlan.evenly(GARBAGE, 0.1)
    missing, _, judge = await missing_under(plan, judge_over, 400, record_property, failure_budget=0.02)
    account = judge.roles[PromptRole.GRADE]
    assert missing.total() <= 0.02 * 400
    assert {fault: account[fault] for fault in Fault if account[fault]} == dict(missing)


@pytest.mark.fault(2)
async def test_a_third_of_garbage_stops_the_stage_and_it_resumes(
    judge_over: JudgeOver, tmp_path: Path, record_property: Report
) -> None:
    texts = answers(400)
    truth = await undisturbed(judge_over, texts)
    cache = tmp_path / "judgements.sqlite"
    fake = FakeServer(sound, plan=FaultPlan.evenly(GARBAGE, 1 / 3))
    async with judge_over(fake, cache=cache, failure_budget=0.02, concurrency=16) as judge:
        with pytest.raises(JudgeError, match=r"judgements failed \(unreadable") as raised:
            await grade_all(judge, texts)
    paid = rows_in(cache)
    assert raised.value.exit_code is ExitCode.OUTSIDE and 0 < paid < len(texts)

    healthy = FakeServer(sound)
    async with judge_over(healthy, cache=cache, failure_budget=0.02) as judge:
        verdicts = await grade_all(judge, texts)
    record_property("paid before", paid)
    record_property("asked after", len(healthy.requests))
    assert [verdict.value for verdict in verdicts] == truth
    # First tries that were read are not asked again; a second try belongs to another seed.
    assert len(healthy.requests) < len(texts) and len(healthy.requests) + paid <= 1.35 * len(texts)


@pytest.mark.fault(3)
@pytest.mark.parametrize("kind", [*TRANSPORT, FaultKind.SLOW_DRIP])
async def test_one_kind_of_transport_fault_is_survived(
    judge_over: JudgeOver, kind: FaultKind, record_property: Report
) -> None:
    missing, fake, _ = await missing_under(FaultPlan({kind: 0.15}), judge_over, 100, record_property)
    assert missing.total() <= 2
    # No storm: a faulty request is sent again once, and canaries are few.
    assert len(fake.requests) <= 100 + fake.injected.total() + 10


@pytest.mark.fault(3)
async def test_a_tenth_of_all_transport_faults_is_survived(
    judge_over: JudgeOver, record_property: Report
) -> None:
    plan = FaultPlan.evenly(TRANSPORT, 0.1)
    missing, _, _ = await missing_under(plan, judge_over, 400, record_property, failure_budget=0.02)
    assert missing.total() <= 0.02 * 400


@pytest.mark.fault(3)
async def test_retry_after_holds_everybody_back(judge_over: JudgeOver) -> None:
    times: list[float] = []

    def noted(request: ServedRequest) -> ServedReply:
        times.append(time.monotonic())
        return sound(request)

    fake = FakeServer(noted, retry_after=0.5)
    fake.fault = FaultKind.BUSY
    async with judge_over(fake, concurrency=4) as judge:
        grading = asyncio.create_task(grade_all(judge, answers(30)))
        await asyncio.sleep(0.2)
        before = len(times)
        fake.fault = None
        verdicts = await grading

    assert before <= 4, "only those who were on their way before the first 429 came back"
    assert times[before] - times[0] >= 0.45
    # Busy is not a failure: no call used up an attempt.
    assert all(verdict.value is not None and verdict.attempts == 1 for verdict in verdicts)


@pytest.mark.fault(3)
async def test_an_endpoint_that_is_down_is_probed_not_stormed(judge_over: JudgeOver) -> None:
    fake = FakeServer(sound)
    fake.fault = FaultKind.UNAVAILABLE
    texts = answers(300)
    async with judge_over(fake, concurrency=16, patience=20.0) as judge:
        grading = asyncio.create_task(grade_all(judge, texts))
        await asyncio.sleep(1.2)
        while_down = len(fake.requests)
        fake.fault = None
        verdicts = await grading

    assert while_down <= 16 * 3 + 4
    assert all(verdict.value is not None for verdict in verdicts)
    assert max(verdict.attempts for verdict in verdicts) <= 3


@pytest.mark.fault(3)
async def test_an_outage_stops_the_stage_with_exit_75(judge_over: JudgeOver) -> None:
    fake = FakeServer(sound)
    fake.fault = FaultKind.RESET
    async with judge_over(fake, failure_budget=0.02, patience=0.3) as judge:
        with pytest.raises(JudgeError, match="unavailable"):
            await grade_all(judge, answers(80))


@pytest.mark.fault(4)
async def test_a_hung_engine_is_noticed_and_everybody_waits_for_it(judge_over: JudgeOver) -> None:
    fake = FakeServer(sound)
    fake.fault = FaultKind.HANG
    texts = answers(60)
    async with judge_over(fake, concurrency=8, patience=20.0) as judge:
        grading = asyncio.create_task(grade_all(judge, texts))
        endpoint = await judge.endpoints[JudgeRole.GRADE].here()
        while not endpoint.servers[0].health.is_down:
            await asyncio.sleep(0.02)
        asked_while_hung = len(fake.requests)
        fake.fault = None
        verdicts = await grading

    assert asked_while_hung <= 8 + 3
    truth = await undisturbed(judge_over, texts)
    assert [verdict.value for verdict in verdicts] == truth


@pytest.mark.fault(4)
def test_the_defaults_notice_a_hung_engine_within_90_seconds() -> None:
    assert 2 * SILENCE <= 90


async def test_a_slow_engine_that_answers_canaries_is_left_to_work(judge_over: JudgeOver) -> None:
    def slow(request: ServedRequest) -> ServedReply:
        is_canary = request.body["max_tokens"] == 1
        return replace(sound(request), seconds=0.0 if is_canary else 1.0)

    fake = FakeServer(slow)
    async with judge_over(fake) as judge:
        verdicts = await grade_all(judge, answers(20))

    assert all(verdict.value is not None and verdict.attempts == 1 for verdict in verdicts)
    assert len(fake.requests) > 20, "canaries were sent"


@pytest.mark.fault(4)
async def test_single_calls_that_hang_end_at_their_deadline(
    judge_over: JudgeOver, record_property: Report
) -> None:
    plan = FaultPlan({FaultKind.HANG: 0.1})
    missing, _, _ = await missing_under(plan, judge_over, 60, record_property, patience=2.0)
    assert missing.total() <= 1


@pytest.mark.fault(3)
async def test_token_mode_meets_the_same_faults(judge_over: JudgeOver, record_property: Report) -> None:
    def sound_token(request: ServedRequest) -> ServedReply:
        digit = sound(request).text.removesuffix("</score>")[-1]
        return ServedReply(digit, dict.fromkeys("01", 0.1) | {digit: 0.9}, finish="length")

    texts = answers(150)
    async with judge_over(sound_token, verdict="token") as judge:
        truth = [verdict.value for verdict in await grade_all(judge, texts)]
    kinds = (*TRANSPORT, FaultKind.NO_VERDICT, FaultKind.EMPTY, FaultKind.HUGE, FaultKind.NEARLY)
    fake = FakeServer(sound_token, plan=FaultPlan.evenly(kinds, 0.2))
    async with judge_over(fake, verdict="token") as judge:
        verdicts = await grade_all(judge, texts)
        check(verdicts, truth, fake, record_property)

    assert all(verdict.probability is not None for verdict in verdicts if verdict.value is not None)


def test_one_judge_works_in_loop_after_loop_and_leaves_nothing_open(
    pack: Pack, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeServer(sound)
    judges: list[ModelJudge] = []

    async def one_stage(port: int) -> str:
        async with fake.serving(port) as url:
            if not judges:
                config = JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url, model=FAKE_MODEL))
                judges.append(ModelJudge(config, pack, seed=0))
            assert ((await judges[0].ask(GateQuestion(TASK, Gate.ENTITY, None))).verdict).value is not None
            return url

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        url = asyncio.run(one_stage(0))
        port = int(url.rpartition(":")[2].partition("/")[0])
        asyncio.run(one_stage(port))
        gc.collect()
    assert len(fake.requests) == 2 and [record.message for record in caplog.records] == []


async def test_roles_may_have_endpoints_of_their_own(pack: Pack) -> None:
    graders, others = FakeServer(sound), FakeServer(sound)
    async with graders.serving() as grade_url, others.serving() as url:
        config = JudgeConfig.model_validate(
            {
                "kind": "model",
                "endpoint": {"base_url": url, "model": FAKE_MODEL},
                "endpoints": {"grade": {"base_url": grade_url, "model": FAKE_MODEL}},
            }
        )
        judge = ModelJudge(config, pack, seed=0)
        await judge.ask(GateQuestion(TASK, Gate.ENTITY, None))
        await judge.ask(GradeQuestion(TASK, CRITERION, "Floods."))
        await judge.close()

    assert (len(graders.requests), len(others.requests)) == (1, 1)
    assert len(set(endpoints_per_loop(config).values())) == 2
