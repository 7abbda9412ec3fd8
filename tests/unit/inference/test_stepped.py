"""A stepped engine takes turns as they come: nothing waits for a batch, and faults end what they touch."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.inference.codec import Sampling, Stops
from scope_selfplay.inference.stepped import SteppedEngine
from scope_selfplay.training.engines import Rollouts
from scope_selfplay.training.ranks import Ranks


class Codec:
    """As much of a codec as stops need: every string is a token of its own, `</long>` is two."""

    end_ids = frozenset({2})

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return (90, 91) if tag == "</long>" else (sum(map(ord, tag)) % 80 + 10,)


@dataclass
class Engine:
    """Answers each request after as many steps as it may have tokens, one token a step."""

    fails_at: int | None = None
    fault: BaseException | None = None
    steps: int = 0
    running: dict[str, tuple[list[int], Sampling, int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop | None = None
    """Of the rollouts: each step takes as long as they need to go on."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self.running[request_id] = (prompt["prompt_token_ids"], params, self.steps)

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for each in request_ids:
            del self.running[each]

    def step(self) -> Sequence[Any]:
        self.steps += 1
        time.sleep(0.003)
        if self.loop is not None:
            self._let_go_on(self.loop, 10)
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(self.running))
        if self.steps == self.fails_at and self.fault is not None:
            raise self.fault
        done = [
            name
            for name, (_, params, begun) in self.running.items()
            if self.steps - begun == params.max_tokens
        ]
        return [self._output(name, *self.running.pop(name)) for name in done]

    def _let_go_on(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        for _ in range(turns):
            gone_on = threading.Event()
            with suppress(RuntimeError):  # it may be closed
                loop.call_soon_threadsafe(gone_on.set)
                gone_on.wait(10)

    def _output(self, name: str, prompt: list[int], params: Sampling, begun: int) -> Any:
        ids = [prompt[0]] * params.max_tokens
        logprobs = [{each: SimpleNamespace(logprob=-0.5)} for each in ids]
        completion = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason="length")
        return SimpleNamespace(request_id=name, finished=True, outputs=[completion])


def stepped(max_length: int = 100, **options: Any) -> SteppedEngine:
    own: dict[str, Any] = {"make_params": lambda sampling: sampling, **options}
    settings = {"identity": "S_0", "temperature": 0.7, **own}
    return SteppedEngine(Codec(), max_length=max_length, **settings)  # type: ignore[arg-type]


def run(model: SteppedEngine, rollouts: Coroutine[Any, Any, Any], engine: Engine) -> Any:
    """What rollouts in a thread of their own return, served on this one."""

    async def known() -> Any:
        engine.loop = asyncio.get_running_loop()
        return await rollouts

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, known())
        model.serve(engine, running)
        return running.result()


def test_a_short_episode_takes_its_next_turn_while_a_long_one_is_in_its_first() -> None:
    counted: list[int] = []
    model, engine, order = stepped(on_tokens=counted.append), Engine(), []

    async def episode(name: int, turns: list[int]) -> None:
        for turn, tokens in enumerate(turns):
            await model.generate(Generate((name,), tokens), (name, turn))
            order.append((name, turn))

    async def rollouts() -> str:
        await asyncio.gather(episode(1, [40]), episode(2, [2, 2, 2]))
        return "done"

    assert run(model, rollouts(), engine) == "done"
    assert order == [(2, 0), (2, 1), (2, 2), (1, 0)] and counted == [2, 2, 2, 40]
    # In lockstep the second episode's turns would only begin after the first one's 40 steps.
    assert engine.steps < 50
    assert engine.threads == {threading.current_thread().name}


def test_a_turn_is_asked_for_with_its_seed_stops_and_what_room_there_is() -> None:
    seen: list[Sampling] = []

    def make_params(sampling: Sampling) -> Sampling:
        seen.append(sampling)
        return sampling

    model = stepped(max_length=10, make_params=make_params)

    async def rollouts() -> list[Sample]:
        asked = [Generate((7, 7, 7), 50, ("</a>", "</long>")), Generate((7,), 3, (), greedy=True)]
        with pytest.raises(InferenceError, match="does not fit"):
            await model.generate(Generate((1,) * 10, 5), ())
        return [await model.generate(each, ("k", row)) for row, each in enumerate(asked)]

    first, second = run(model, rollouts(), Engine())
    assert first == Sample((7,) * 7, (-0.5,) * 7, first.finish) and len(second.ids) == 3
    assert [each.max_tokens for each in seen] == [7, 3]
    assert [each.temperature for each in seen] == [0.7, 0.0]
    assert seen[0].seed != seen[1].seed
    assert seen[0].stops == Stops(frozenset({2, *Codec().encode_tag("</a>")}), ("</long>",))


def test_what_the_rollouts_raise_comes_out_and_leaves_no_request_behind() -> None:
    model, engine = stepped(), Engine()

    async def rollouts() -> None:
        turn = asyncio.create_task(model.generate(Generate((1,), 90), ()))
        # Its request is made first, so that the engine has it when the other one is done.
        await asyncio.sleep(0)
        await model.generate(Generate((2,), 1), ())
        assert not turn.done()
        raise ValueError("a bug in a reward")

    with pytest.raises(ValueError, match="a bug in a reward"):
        run(model, rollouts(), engine)
    assert engine.running == {} and len(engine.aborted) == 1
    assert engine.steps < 90


def test_an_engine_that_breaks_ends_the_step_with_its_own_error() -> None:
    model, engine = stepped(), Engine(fails_at=3, fault=RuntimeError("CUDA error"))
    faults: list[str] = []

    async def rollouts() -> None:
        for turn in range(2):
            try:
                await model.generate(Generate((1,), 9), (turn,))
            except InferenceError as fault:
                faults.append(str(fault))

    with pytest.raises(RuntimeError, match="CUDA error"):
        run(model, rollouts(), engine)
    assert len(faults) == 2 and all("CUDA error" in each for each in faults)
    assert engine.steps == 3


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A shell starts what runs in its background deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("now", ["the engine works", "all episodes search", "all are judged"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_rollouts_where_they_are(number: signal.Signals, now: str) -> None:
    ended: list[str] = []
    ready = threading.Barrier(3, action=lambda: threading.Timer(0.3, os.kill, (os.getpid(), number)).start())

    async def episode(name: str) -> None:
        try:
            await asyncio.to_thread(ready.wait)
            if now == "the engine works":
                await model.generate(Generate((1,), 100_000), (name,))
            # A search, or the wait for a judge.
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def sample_step(records: Sequence[str], step: int, sampled: Any) -> Any:
        if now == "all are judged":
            sampled([])
        await asyncio.gather(*map(episode, records))

    model = stepped(max_length=200_000)
    with pytest.raises(SystemExit if number is signal.SIGTERM else KeyboardInterrupt), Ranks() as ranks:
        rollouts = Rollouts(sample_step, ["one", "two"], 0)
        ranks.interrupt = rollouts.cancel
        try:
            ready.wait()
            model.serve(Engine(), rollouts.sampled)
            assert rollouts.result.result() is None
            ranks.agree("rewards", None)
        finally:
            rollouts.cancel()
            rollouts.result.result(60)
    assert sorted(ended) == ["one", "two"]


def test_the_engine_is_given_back_when_all_are_sampled_and_still_judged() -> None:
    model, engine, judged = stepped(), Engine(), threading.Event()

    async def sample_step(records: Sequence[str], step: int, sampled: Any) -> Any:
        await model.generate(Generate((4,), 3), ())
        sampled(["rows"])
        await asyncio.to_thread(judged.wait, 120)
        return SimpleNamespace(rows=["rows"])

    for _ in range(2):
        judged.clear()
        rollouts = Rollouts(sample_step, [], 0)
        model.serve(engine, rollouts.sampled)
        assert rollouts.sampled.result() == ["rows"] and not engine.running and not rollouts.result.done()
        judged.set()
        assert rollouts.result.result(120)


def test_an_engine_gets_as_many_turns_as_its_cache_holds_and_those_of_running_episodes_first() -> None:
    model, engine, order = stepped(), Engine(), []
    cache = SimpleNamespace(num_gpu_blocks=5, block_size=16)
    engine.vllm_config = SimpleNamespace(cache_config=cache)  # type: ignore[attr-defined]

    async def episode(name: int) -> None:
        for turn in range(3):
            await model.generate(Generate((name,) * 30, 8, turn=turn), (name, turn))
            order.append((name, turn))

    async def rollouts() -> None:
        await asyncio.gather(*map(episode, range(6)))

    run(model, rollouts(), engine)
    # Of 80 tokens a turn takes 30 and 2 to 8: two fit.
    assert max(engine.batches) == 2
    # First come, first served would begin all six before one of them ends.
    ends = [order.index((name, 2)) for name in range(6)]
    assert max(ends[:2]) < min(order.index((name, 0)) for name in (4, 5))
