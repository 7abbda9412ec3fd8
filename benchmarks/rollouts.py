"""How long a step's rollouts take when every episode flows on its own, and when turns go in lockstep.

    python -m benchmarks.rollouts [--json FILE]

The episodes and their driver are the library's own, run on a clock that skips waiting. The engine and the retriever
are a service-time model: `slots` sequences are decoded side by side, a token takes `token` seconds, turns are as long
as a log-normal draw says, and a search takes as long as another one says. The lower bound is work / capacity; no
schedule beats it, nor the longest episode alone.

Lockstep is TRL 1.16's tool loop on the same trace (`GRPOTrainer._tool_call_loop`): generate the turn of all that are
still running and wait for the slowest, then serve the searches of one sample after the other, then the next turn.
"""

import argparse
import asyncio
import heapq
import json
import selectors
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scope_selfplay.dialects import dialect
from scope_selfplay.episodes import PolicyFormat, RolloutLimits, run_episode, solver_episode
from scope_selfplay.inference import Generate, Message, Sample
from scope_selfplay.schemas import Finish, Key, Passage, RolloutStatus

T = TypeVar("T")

GOAL = 1.15
"""Makespan of our driver against work / capacity, where there is more work than one wave of slots."""


class Turn(NamedTuple):
    """`search` is None after the last turn."""

    tokens: int
    search: float | None


Trace = Sequence[Sequence[Turn]]
"""Episodes, each with its turns."""


@dataclass(frozen=True)
class Load:
    """A step's rollouts and what serves them. Seconds; tokens a turn."""

    name: str
    episodes: int
    slots: int
    most_turns: int = 6
    median_tokens: float = 150.0
    spread: float = 0.9
    longest_turn: int = 2048
    token: float = 0.02
    median_search: float = 0.02
    search_spread: float = 0.8

    def draw(self, seed: int) -> Trace:
        rng = np.random.default_rng(seed)
        episodes = []
        for _ in range(self.episodes):
            turns = int(rng.integers(1, self.most_turns + 1))
            tokens = np.exp(rng.normal(np.log(self.median_tokens), self.spread, turns))
            tokens = np.clip(tokens, 8, self.longest_turn).astype(int)
            searches = np.exp(rng.normal(np.log(self.median_search), self.search_spread, turns))
            episodes.append(
                [
                    Turn(int(tokens[row]), float(searches[row]) if row < turns - 1 else None)
                    for row in range(turns)
                ]
            )
        return episodes


LOADS = (
    Load("a Solver step: 256 tasks x 8, 128 slots", episodes=2048, slots=128),
    Load("a Challenger step: 64 documents x 8, 32 slots", episodes=512, slots=32),
    Load("a Solver step, slow searches (0.5 s)", episodes=2048, slots=128, median_search=0.5),
    Load("all at once: 512 rollouts, 512 slots", episodes=512, slots=512),
)


class Result(NamedTuple):
    """Seconds."""

    load: str
    work_over_capacity: float
    longest_episode: float
    ours: float
    lockstep: float
    lockstep_without_searches: float

    @property
    def has_queue(self) -> bool:
        """Whether there is more than one wave of work, so that capacity and not one episode is the limit."""
        return self.work_over_capacity > self.longest_episode

    @property
    def ratio(self) -> float:
        return self.ours / max(self.work_over_capacity, self.longest_episode)


def measure(load: Load, seed: int = 0) -> Result:
    trace = load.draw(seed)
    work = sum(turn.tokens for episode in trace for turn in episode) * load.token
    longest = max(
        sum(turn.tokens * load.token + (turn.search or 0.0) for turn in episode) for episode in trace
    )
    return Result(
        load.name,
        work / load.slots,
        longest,
        ours(trace, load),
        lockstep(trace, load, searches=True),
        lockstep(trace, load, searches=False),
    )


def ours(trace: Trace, load: Load) -> float:
    """Seconds until the library's driver has finished every episode of the trace."""
    engine, index = _Engine(trace, load), _Index(trace)
    policy_format = PolicyFormat(_Codec(), dialect("qwen2.5"), "S_0", RolloutLimits(max_response=1 << 30))

    async def one(number: int) -> None:
        episode = solver_episode(
            policy_format,
            (number,),
            task_id=str(number),
            prompt=str(number),
            max_search_turns=load.most_turns,
        )
        rollout = await run_episode(episode, engine, index, key=(number,), topk=3)
        assert rollout.status is RolloutStatus.FINISHED and len(rollout.turns) == len(trace[number])

    async def all_of_them() -> float:
        await asyncio.gather(*map(one, range(len(trace))))
        return asyncio.get_running_loop().time()

    return run_skipping(all_of_them())


def lockstep(trace: Trace, load: Load, *, searches: bool) -> float:
    """Seconds of TRL's loop; without `searches`, of its barriers alone."""
    now, number = 0.0, 0
    while running := [episode[number] for episode in trace if number < len(episode)]:
        now += _wave([turn.tokens * load.token for turn in running], load.slots)
        if searches:
            now += sum(turn.search or 0.0 for turn in running)
        number += 1
    return now


def _wave(seconds: Sequence[float], slots: int) -> float:
    """When the last of these has ended, begun in their order as slots become free."""
    free = [0.0] * min(slots, len(seconds))
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


class _Engine:
    """Continuous batching: a turn takes the next free slot, in the order of arrival, for as long as it has tokens."""

    identity = "model"

    def __init__(self, trace: Trace, load: Load) -> None:
        self._trace, self._load = trace, load
        self._slots = asyncio.Semaphore(load.slots)

    async def generate(self, request: Generate, key: Key) -> Sample:
        episode, number = int(key[0]), int(key[1])
        turn = self._trace[episode][number]
        async with self._slots:
            await asyncio.sleep(turn.tokens * self._load.token)
        last = turn.search is None
        return Sample((_ANSWER,) if last else (_FIRST_QUERY + episode * 64 + number,), None, Finish.STOP)


class _Index:
    identity = "index"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    async def search(self, query: str, topk: int) -> list[Passage]:
        episode, number = map(int, query.split())
        await asyncio.sleep(self._trace[episode][number].search or 0.0)
        return []


_ANSWER, _FIRST_QUERY = 1, 2


class _Codec:
    """One token a turn: the answer, or the query that names its episode and turn."""

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (0,)

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        return (0,)

    def decode(self, ids: Sequence[int]) -> str:
        (token,) = ids[-1:]
        if token == _ANSWER:
            return "<think>so</think><answer>yes</answer>"
        episode, number = divmod(token - _FIRST_QUERY, 64)
        return f"<think>so</think><search>{episode} {number}</search>"

    def count(self, text: str) -> int:
        return 1

    def truncate(self, text: str, max_tokens: int) -> str:
        return text

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return (0,)


def run_skipping(work: Coroutine[Any, Any, T]) -> T:
    """Run on an event loop whose clock jumps to the next timer instead of waiting for it."""
    loop = _SkippingLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class _SkippingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("every task waits for something that never comes")
        self.now += max(timeout, 0.0)
        return super().select(0)


class _SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = [measure(load, options.seed) for load in LOADS]
    heads = ("bound", "ours", "ratio", "lockstep", "times", "(barriers)")
    print(f"{'seconds of the model':46}", *(f"{head:>10}" for head in heads))
    for each in results:
        bound = max(each.work_over_capacity, each.longest_episode)
        print(
            f"{each.load:46} {bound:10.0f} {each.ours:10.0f} {each.ratio:10.3f} {each.lockstep:10.0f} "
            f"{each.lockstep / each.ours:10.2f} {each.lockstep_without_searches / each.ours:10.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps([each._asdict() for each in results], indent=1) + "\n")
    worst = max(each.ours / each.work_over_capacity for each in results if each.has_queue)
    print(f"worst ratio to work / capacity where work queues: {worst:.3f}, goal {GOAL}")
    if worst > GOAL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
