"""The in-process engine with the shipped policy on long-tailed turns: every episode on its own, and turns in lockstep.

    python -m benchmarks.real_engine [--episodes N] [--slots N] [--processes N]

What `benchmarks.rollouts` shows on a model of an engine, on the one that `scope run` and `scope serve-model` use: the
same turns, as long as a log-normal draw says, decoded by the same engine. In lockstep the next turn of any episode
waits for the slowest of all, as in TRL 1.16's tool loop. A forward pass costs about the same for one sequence as
for some, so passes are counted beside the CPU time. Last, the same episodes in one process and in several, in turns:
on as many idle cores, seconds should fall almost as the processes are more.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from benchmarks.rollouts import Load, Trace
from scope_selfplay.inference import Generate, Message
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec, Stops
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.sampling_processes import SamplingProcesses, SpreadModel

MAX_LENGTH = 768
# Turns end by their drawn length only.
_NEVER = Stops(frozenset(), ())


class Measured(NamedTuple):
    cpu: float
    """Seconds."""
    passes: int


class Bench:
    def __init__(self, slots: int) -> None:
        folder = policy_path("embedded")
        codec = ChatCodec.load(folder)
        self.engine = InProcessModel(
            load_model(folder), codec, identity="bench", slots=slots, max_length=MAX_LENGTH
        )
        self.codec = codec
        self.prompt = tuple(codec.encode_prompt([Message("user", "Report the founder of Othmoor Abbey.")]))
        self.passes = 0

    async def turn(self, seen: tuple[int, ...], tokens: int, seed: int) -> tuple[int, ...]:
        sample = await self.engine.sample(Generate(seen, tokens), seed, stops=_NEVER)
        return seen + sample.ids

    def measure(self, work: Coroutine[Any, Any, None]) -> Measured:
        self.engine.refresh("bench")
        forward, self.passes = self.engine.cache.forward, 0

        def counted(*arguments: Any) -> Any:
            self.passes += 1
            return forward(*arguments)

        self.engine.cache.forward = counted
        began = time.process_time()
        asyncio.run(work)
        return Measured(time.process_time() - began, self.passes)


async def flowing(bench: Bench, trace: Trace) -> None:
    async def episode(number: int) -> None:
        seen = bench.prompt
        for row, turn in enumerate(trace[number]):
            seen = await bench.turn(seen, turn.tokens, 1000 * number + row)

    await asyncio.gather(*map(episode, range(len(trace))))


async def in_lockstep(bench: Bench, trace: Trace) -> None:
    seen: list[tuple[int, ...]] = [bench.prompt] * len(trace)
    for row in range(max(map(len, trace))):
        going: Sequence[int] = [number for number, episode in enumerate(trace) if row < len(episode)]
        turns = [bench.turn(seen[each], trace[each][row].tokens, 1000 * each + row) for each in going]
        for number, ids in zip(going, await asyncio.gather(*turns), strict=True):
            seen[number] = ids


def in_processes(bench: Bench, trace: Trace, count: int, repeats: int = 3) -> list[tuple[float, float]]:
    """Tokens per second in one process and in `count`, in turns."""
    options = {"slots": -(-96 // count), "max_length": MAX_LENGTH, "share": count}
    local = InProcessModel(load_model(policy_path("embedded")), bench.codec, identity="all", **options)
    processes = SamplingProcesses(count - 1)
    engines = (bench.engine, processes.spread(local, options))

    async def episodes(engine: InProcessModel | SpreadModel) -> int:
        async def one(number: int) -> int:
            seen = bench.prompt
            for row, turn in enumerate(trace[number]):
                seen += (await engine.generate(Generate(seen, turn.tokens, turn=row), (number, row))).ids
            return len(seen) - len(bench.prompt)

        return sum(await asyncio.gather(*map(one, range(len(trace)))))

    rates = []
    for _ in range(repeats + 1):
        pair = []
        for engine in engines:
            engine.refresh("bench")
            began = time.perf_counter()
            tokens = asyncio.run(episodes(engine))
            pair.append(tokens / (time.perf_counter() - began))
        rates.append((pair[0], pair[1]))
    processes.close()
    # The first turns waited for the others' libraries.
    return rates[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--slots", type=int, nargs="+", default=[96, 24])
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    load = Load("", asked.episodes, 0, most_turns=5, median_tokens=24, spread=0.9, longest_turn=128)
    trace = load.draw(0)
    tokens = sum(turn.tokens for episode in trace for turn in episode)
    print(f"{asked.episodes} episodes, {tokens:,} tokens, the shipped policy on one core")
    print(f"{'slots':>6}{'ours: passes':>14}{'CPU s':>8}{'lockstep: passes':>18}{'CPU s':>8}{'times':>8}")
    for slots in asked.slots:
        bench = Bench(slots)
        ours = bench.measure(flowing(bench, trace))
        lock = bench.measure(in_lockstep(bench, trace))
        print(
            f"{slots:6}{ours.passes:14}{ours.cpu:8.1f}{lock.passes:18}{lock.cpu:8.1f}{lock.passes / ours.passes:8.2f}"
        )
    for one, several in in_processes(Bench(96), trace, asked.processes):
        print(
            f"tokens per second: {one:,.0f} in one process, {several:,.0f} in {asked.processes} "
            f"({several / one:.2f} times; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
        )


if __name__ == "__main__":
    main()
