"""How long a step's rollouts take when every episode flows on its own.

    python -m benchmarks.rollouts [--seed N]

The episodes and their driver are the library's own, run on a clock that skips waiting. The engine and the retriever
are a service-time model: `slots` sequences are decoded side by side, a token takes `token` seconds, turns are as long
as a log-normal draw says, and a search takes as long as another one says. The lower bound is work / capacity; no
schedule beats it, nor the longest episode alone.

What a turn reads (its prompt, or the last search result) takes the engine's time from all slots, `read_rate` tokens a
second. The engine keeps what it read last, up to `cache` tokens: a turn finds what its episode said before there, or
reads it again. `hits` is the share found, and `group` the mean time at which a group of 8 is whole, with later turns
first, as the library's engines serve them (`inference.admission`), and by arrival.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.skipping_loop import run_skipping
from scope_selfplay.base.sampling import Generate, Message, Sample
from scope_selfplay.base.values import Finish, Key, Passage, RolloutStatus
from scope_selfplay.dialects.families import dialect
from scope_selfplay.net.admission import Admission
from scope_selfplay.policy.conversation import PolicyFormat, RolloutLimits
from scope_selfplay.policy.episodes import run_episode, solver_episode
from scope_selfplay.search.tools import searching

GOAL = 1.2
"""Makespan of our driver against work / capacity, where there is more work than one wave of slots. The last episodes
begin when others have ended: their own length is a tail that no order avoids without knowing it."""


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
    prompt_tokens: int = 600
    result_tokens: int = 400
    read_rate: float = 40_000.0

    @property
    def cache(self) -> int:
        """Tokens that the engine keeps: twice what its slots hold of an episode on average."""
        turns = (1 + self.most_turns) / 2
        each = self.prompt_tokens + turns * (self.median_tokens * 1.5 + self.result_tokens)
        return int(2 * self.slots * each)

    def seconds(self, turn: Turn, read: int) -> float:
        """How long a slot is taken by a turn that reads so many tokens first."""
        return turn.tokens * self.token + read * self.slots / self.read_rate

    def new(self, number: int) -> int:
        """Tokens that nothing could have kept for the turn of this number."""
        return self.result_tokens if number else self.prompt_tokens

    def before(self, episode: "Sequence[Turn]", number: int) -> int:
        """Tokens of the earlier turns, with their prompts and results."""
        return sum(self.new(earlier) + episode[earlier].tokens for earlier in range(number))

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
    ours: "Flow"
    by_arrival: "Flow"

    @property
    def has_queue(self) -> bool:
        """Whether there is more than one wave of work, so that capacity and not one episode is the limit."""
        return self.work_over_capacity > self.longest_episode

    @property
    def bound(self) -> float:
        return max(self.work_over_capacity, self.longest_episode)


def measure(load: Load, seed: int = 0) -> Result:
    trace = load.draw(seed)
    busy = [
        sum(load.seconds(turn, load.new(number)) for number, turn in enumerate(episode)) for episode in trace
    ]
    work = sum(busy)
    longest = max(
        seconds + sum(turn.search or 0.0 for turn in episode)
        for seconds, episode in zip(busy, trace, strict=True)
    )
    flows = [ours(trace, load, later_first=later_first) for later_first in (True, False)]
    return Result(load.name, work / load.slots, longest, *flows)


class Flow(NamedTuple):
    """When all episodes have ended, when a group of them has on average, and the share of prefixes still there."""

    seconds: float
    group: float
    hits: float


def ours(trace: Trace, load: Load, *, later_first: bool) -> Flow:
    """The library's driver over every episode of the trace."""
    engine, index = _Engine(trace, load, later_first=later_first), _Index(trace)
    ends = [0.0] * len(trace)
    tools = searching(index, 3)
    policy_format = PolicyFormat(_Codec(), dialect("qwen2.5"), "S_0", RolloutLimits(max_response=1 << 30))

    async def one(number: int) -> None:
        episode = solver_episode(
            policy_format,
            (number,),
            task_id=str(number),
            prompt=str(number),
            max_search_turns=load.most_turns,
        )
        rollout = await run_episode(episode, engine, tools, key=(number,))
        assert rollout.status is RolloutStatus.FINISHED and len(rollout.turns) == len(trace[number])
        ends[number] = asyncio.get_running_loop().time()

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(len(trace))))

    run_skipping(all_of_them())
    groups = [max(ends[first : first + _GROUP]) for first in range(0, len(ends), _GROUP)]
    return Flow(max(ends), sum(groups) / len(groups), engine.prefixes.hits)


class _Engine:
    """Continuous batching: a turn takes the next free slot for as long as it has tokens."""

    identity = "model"

    def __init__(self, trace: Trace, load: Load, *, later_first: bool) -> None:
        self._trace, self._load, self._later_first = trace, load, later_first
        self._slots = Admission(load.slots)
        self.prefixes = _Prefixes(load.cache)

    async def generate(self, request: Generate, key: Key) -> Sample:
        episode, number = int(key[0]), int(key[1])
        turn = self._trace[episode][number]
        before, new = self._load.before(self._trace[episode], number), self._load.new(number)
        async with self._slots.turn(number=request.turn if self._later_first else 0):
            missed = self.prefixes.read(episode, before, new)
            await asyncio.sleep(self._load.seconds(turn, missed + new))
            self.prefixes.keep(episode, before + new + turn.tokens)
        last = turn.search is None
        return Sample((_ANSWER,) if last else (_FIRST_QUERY + episode * 64 + number,), None, Finish.STOP)


class _Prefixes:
    """What an engine keeps of the episodes that it read last; those that run are never dropped."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._running: dict[int, int] = {}
        self._held = self._found = self._looked_for = 0

    @property
    def hits(self) -> float:
        return self._found / max(1, self._looked_for)

    def read(self, episode: int, before: int, new: int) -> int:
        """How much of what was read and said `before` is no longer there."""
        kept = self._kept.pop(episode, 0)
        self._looked_for += before
        self._found += kept
        self._running[episode] = before + new
        self._hold(before + new - kept)
        return before - kept

    def keep(self, episode: int, tokens: int) -> None:
        self._kept[episode] = tokens
        self._hold(tokens - self._running.pop(episode))

    def _hold(self, more: int) -> None:
        self._held += more
        while self._kept and self._held > self._capacity:
            self._held -= self._kept.popitem(last=False)[1]


class _Index:
    identity = "index"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    async def search(self, query: str, topk: int) -> list[Passage]:
        episode, number = map(int, query.split())
        await asyncio.sleep(self._trace[episode][number].search or 0.0)
        return []


_ANSWER, _FIRST_QUERY, _GROUP = 1, 2, 8


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


def main() -> None:
    options = read_options(__doc__, seed=0)
    results = [measure(load, options.seed) for load in LOADS]
    heads = ["seconds", "group", "hits"]
    rows = [["load", "bound", "ours over it", *heads, *(f"by arrival: {head}" for head in heads)]]
    for each in results:
        row = [each.load, f"{each.bound:.0f}", f"{each.ours.seconds / each.bound:.3f}"]
        for flow in (each.ours, each.by_arrival):
            row += [f"{flow.seconds:.0f}", f"{flow.group:.0f}", f"{flow.hits:.2f}"]
        rows.append(row)
    print(markdown(rows))
    worst = max(each.ours.seconds / each.work_over_capacity for each in results if each.has_queue)
    print(f"worst ratio to work / capacity where work queues: {worst:.3f}, goal {GOAL}")
    if worst > GOAL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
