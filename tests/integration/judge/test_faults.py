"""Faults of a judge and of its replicas, injected and counted: what is read equals the undisturbed verdict, 0 wrong
rewards, and nothing is paid for twice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ConfigError, ExitCode, JudgeError
from scope_selfplay.base.values import Fault, Task, Verdict
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig, JudgeRole
from scope_selfplay.judge.endpoint import ask_endpoints, with_models
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GradeQuestion
from scope_selfplay.net.chat import CANARY
from scope_selfplay.net.client import SILENCE
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.testing.chat_server import (
    FAKE_MODEL,
    GARBAGE,
    TRANSPORT,
    FakeServer,
    FaultKind,
    FaultPlan,
)
from tests.clock import Clock
from tests.judges import CRITERION, TASK, JudgeOver, always, sound
from tests.unit.judge.test_cache import rows_in

Report = Callable[[str, object], None]
PATIENCE: float = JudgeConfig.model_fields["patience"].default


def answers(count: int) -> list[str]:
    return [f"Because of flood number {n}." for n in range(count)]


async def grade_all(
    judge: ModelJudge, texts: Sequence[str], tasks: Sequence[Task] = (TASK,)
) -> list[Verdict]:
    asked = (judge.ask(GradeQuestion(task, CRITERION, text)) for text in texts for task in tasks)
    return [reply.verdict for reply in await asyncio.gather(*asked)]


async def undisturbed(
    judge_over: JudgeOver, texts: Sequence[str], tasks: Sequence[Task] = (TASK,)
) -> list[bool | None]:
    async with judge_over(sound) as judge:
        return [verdict.value for verdict in await grade_all(judge, texts, tasks)]


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


TENTHS = [
    pytest.param(GARBAGE, marks=pytest.mark.fault(2)),
    pytest.param(TRANSPORT, marks=pytest.mark.fault(3)),
]


@pytest.mark.parametrize("kinds", TENTHS)
async def test_a_tenth_of_garbage_or_of_transport_faults_is_survived(
    judge_over: JudgeOver, kinds: tuple[FaultKind, ...], record_property: Report
) -> None:
    plan = FaultPlan.evenly(kinds, 0.1)
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


async def as_time_passes(
    grading: "asyncio.Task[list[Verdict]]", clock: Clock, seconds: float, *fakes: FakeServer
) -> list[Verdict]:
    """Its verdicts; so many seconds pass whenever nobody has been asked anything for fifty turns of the loop."""
    before, quiet = 0, 0
    while not grading.done():
        await asyncio.sleep(0.01)
        asked = sum(len(fake.requests) for fake in fakes)
        quiet = quiet + 1 if asked == before > 0 else 0
        if quiet == 50:
            clock.skip(seconds)
            quiet = 0
        before = asked
    return await grading


@pytest.mark.fault(3)
async def test_retry_after_holds_everybody_back(judge_over: JudgeOver, clock: Clock) -> None:
    times: list[float] = []

    def noted(request: ServedRequest) -> ServedReply:
        times.append(time.monotonic())
        return sound(request)

    fake = FakeServer(noted, retry_after=60.0)
    fake.fault = FaultKind.BUSY
    async with judge_over(fake, concurrency=4) as judge:
        grading = asyncio.create_task(grade_all(judge, answers(30)))
        while fake.injected[FaultKind.BUSY] < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len(times) == 4, "only those who were on their way before the first 429 came back"
        fake.fault = None
        while len(times) == 4:
            clock.skip(70.0)
            await asyncio.sleep(0.2)
        verdicts = await grading

    assert times[4] - times[0] >= 60
    # Busy is not a failure: no call used up an attempt.
    assert all(verdict.value is not None and verdict.attempts == 1 for verdict in verdicts)


@pytest.mark.fault(4)
async def test_a_hung_engine_is_noticed_and_everybody_waits_for_it(
    judge_over: JudgeOver, clock: Clock
) -> None:
    fake = FakeServer(sound)
    fake.fault = FaultKind.HANG
    texts = answers(60)
    async with judge_over(fake, concurrency=8) as judge:
        grading = asyncio.create_task(grade_all(judge, texts))
        endpoint = await judge.endpoints[JudgeRole.GRADE].here()
        while not endpoint.servers[0].health.is_down:
            clock.skip(SILENCE)
            await asyncio.sleep(0.1)
        asked_while_hung = len(fake.requests)
        fake.fault = None
        verdicts = await grading

    assert asked_while_hung <= 8 + 3
    assert 2 * SILENCE <= 90, "the defaults notice it within 90 seconds"
    truth = await undisturbed(judge_over, texts)
    assert [verdict.value for verdict in verdicts] == truth


async def test_a_slow_engine_that_answers_canaries_is_left_to_work(
    judge_over: JudgeOver, clock: Clock
) -> None:
    canary = asyncio.Event()

    async def slow(request: ServedRequest) -> ServedReply:
        if request.body["max_tokens"] == 1:
            canary.set()
        else:
            await canary.wait()
        return sound(request)

    fake = FakeServer(slow)
    async with judge_over(fake) as judge:
        grading = asyncio.create_task(grade_all(judge, answers(20)))
        while not fake.requests:
            await asyncio.sleep(0.01)
        clock.skip(SILENCE)
        verdicts = await grading

    assert all(verdict.value is not None and verdict.attempts == 1 for verdict in verdicts)


@pytest.mark.fault(4)
async def test_single_calls_that_hang_end_at_their_deadline(
    judge_over: JudgeOver, clock: Clock, record_property: Report
) -> None:
    texts, fake = answers(60), FakeServer(sound, plan=FaultPlan({FaultKind.HANG: 0.1}))
    truth = await undisturbed(judge_over, texts)
    async with judge_over(fake) as judge:
        grading = asyncio.create_task(grade_all(judge, texts))
        verdicts = await as_time_passes(grading, clock, PATIENCE, fake)
    assert check(verdicts, truth, fake, record_property).total() <= 1


TASKS = [TASK.model_copy(update={"text": f"Why was dam number {number} built?"}) for number in range(24)]
ANSWERS = ["Because of floods.", "For power.", "For ships.", "Nobody knows."]


def judgements_of(*fakes: FakeServer) -> list[str]:
    """What they were asked but for canaries."""
    return [each.prompt for fake in fakes for each in fake.requests if CANARY.prompt not in each.prompt]


async def test_a_tasks_prompts_stay_together_and_verdicts_are_those_of_one_judge(
    judge_over: JudgeOver,
) -> None:
    truth, fakes = await undisturbed(judge_over, ANSWERS, TASKS), [FakeServer(sound) for _ in range(3)]
    async with judge_over(*fakes, concurrency=8) as judge:
        assert [verdict.value for verdict in await grade_all(judge, ANSWERS, TASKS)] == truth
    assert {True, False} == set(truth)
    texts = [task.text for task in TASKS]
    served = [{text for text in texts for each in fake.requests if text in each.prompt} for fake in fakes]
    assert sum(map(len, served)) == len(TASKS) and sum(map(bool, served)) > 1
    asked = judgements_of(*fakes)
    assert len(asked) == len(set(asked)) == len(truth)


@pytest.mark.parametrize("death", [FaultKind.RESET, FaultKind.HANG])
async def test_a_replica_that_dies_makes_no_verdict_wrong_and_none_missing(
    judge_over: JudgeOver, clock: Clock, death: FaultKind
) -> None:
    async def until_death(request: ServedRequest) -> ServedReply:
        if len(dying.requests) >= 12:
            dying.fault = death
        await asyncio.sleep(0.01)
        return sound(request)

    truth = await undisturbed(judge_over, ANSWERS, TASKS)
    dying, other = FakeServer(until_death), FakeServer(sound)
    async with judge_over(dying, other, concurrency=8) as judge:
        grading = asyncio.create_task(grade_all(judge, ANSWERS, TASKS))
        verdicts = await as_time_passes(grading, clock, SILENCE, dying, other)
    assert [verdict.value for verdict in verdicts] == truth
    assert dying.injected[death] > 0
    asked = judgements_of(other)
    assert len(asked) == len(set(asked)), "no judgement is paid for twice by the replica that lives"


@pytest.mark.fault(3)
@pytest.mark.parametrize("replicas", [1, 2, 3])
async def test_an_outage_that_lasts_is_waited_for_once_and_one_that_comes_back_judges_again(
    judge_over: JudgeOver, clock: Clock, replicas: int
) -> None:
    fakes = [FakeServer(sound) for _ in range(replicas)]
    for fake in fakes:
        fake.fault = FaultKind.RESET
    async with judge_over(*fakes, concurrency=8) as judge:
        grading = asyncio.create_task(grade_all(judge, ANSWERS, TASKS))
        servers = (await judge.endpoints[JudgeRole.GRADE].here()).servers
        while not all(server.health.is_down for server in servers):
            await asyncio.sleep(0.01)
        assert not grading.done(), "it is waited for"
        await asyncio.sleep(1.2)
        asked = sum(len(fake.requests) for fake in fakes)
        assert asked <= (8 * 3 + 4) * replicas, "they are probed, not stormed"
        verdicts = await as_time_passes(grading, clock, PATIENCE, *fakes)
        assert {verdict.fault for verdict in verdicts} == {Fault.UNAVAILABLE}
        assert any(f"down for more than {PATIENCE:.0f} s" in verdict.reasoning for verdict in verdicts)
        before = judgements_of(*fakes)
        # Nothing puts the clock forward now: whoever waited again would wait ten minutes.
        async with asyncio.timeout(PATIENCE / 2):
            for answer in ANSWERS[1:]:
                assert [each.fault for each in await grade_all(judge, [answer])] == [Fault.UNAVAILABLE]
        assert judgements_of(*fakes) == before, "nobody is asked before a canary was answered"
        fakes[-1].fault = None
        while (await grade_all(judge, ANSWERS[:1]))[0].value is None:
            clock.skip(1.0)
            await asyncio.sleep(0.1)


class AnswersCanariesAlone(FaultPlan):
    def draw(self, body: Mapping[str, object]) -> FaultKind | None:
        return None if CANARY.prompt in str(body["messages"]) else FaultKind.RESET


@pytest.mark.parametrize("replicas", [1, 2])
async def test_calls_that_no_replica_survives_end_although_canaries_are_answered(
    judge_over: JudgeOver, replicas: int
) -> None:
    fakes = [FakeServer(sound, plan=AnswersCanariesAlone()) for _ in range(replicas)]
    async with judge_over(*fakes, retries=1) as judge, asyncio.timeout(60.0):
        (verdict,) = await grade_all(judge, ANSWERS[:1])
    assert verdict.fault is Fault.UNAVAILABLE and verdict.attempts == 2
    assert all(fake.injected[FaultKind.RESET] <= 2 for fake in fakes)


async def test_replicas_serve_the_same_model_and_each_is_asked_for_a_token_at_the_start() -> None:
    def config_of(*urls: str, model: str | None = FAKE_MODEL) -> JudgeConfig:
        return JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=urls, model=model))

    fakes = [FakeServer(always("1")), FakeServer(always("1")), FakeServer(always("1"), model="other")]
    async with fakes[0].serving() as first, fakes[1].serving() as second, fakes[2].serving() as other:
        answered = [f"fake at {url}" for url in (first, second)]
        assert await ask_endpoints(config_of(first, second)) == answered
        assert [len(fake.requests) for fake in fakes] == [1, 1, 0]
        with pytest.raises(ConfigError, match=r"serves other, .* fake; servers of one model serve the same"):
            await with_models(config_of(first, other, model=None))
