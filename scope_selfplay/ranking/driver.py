"""Plays a topology against a judge: all calls of a wave at once, and no call made twice.

The only module of the package that awaits. It knows no judge: `compare` and `select` are the caller's, and
return None for a call that failed after its retries. What they raise ends the play, with the wave's other
calls cancelled.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import ComparisonGraph, GroupTopology, Match, Strengths, Topology

Compare = Callable[[Match], Awaitable[Outcome | None]]
"""Judges one presentation; None when the call failed."""

Select = Callable[[list[int]], Awaitable[list[int] | None]]
"""Picks the winners of one group, as entrant numbers; None when the call failed."""

Names = tuple[Hashable, ...]
"""The identities of the entrants of one call, in the order shown."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Wave = TypeVar("Wave")
Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Played:
    """`graph` holds every presentation in the order of the plan, also those answered without a call."""

    strengths: Strengths
    graph: ComparisonGraph


async def play(
    topology: Topology,
    compare: Compare,
    *,
    both_orders: bool = False,
    rematches: bool = False,
    identity: Sequence[Hashable],
) -> Played:
    """Drives a topology of matches to its strengths.

    `both_orders`: every match is shown twice, swapped, and the scores are averaged (ArenaRL equation 3, as
    a mean); with one of the two missing the match has no verdict. `identity`: per entrant its answer, as a
    text or a hash. Equal identities tie without a call, and an ordered pair of identities is judged once
    however often the plan asks for it, with `rematches` once per wave. A score that is not finite counts as a failure.
    """

    async def ask(match: Match) -> Outcome | None:
        outcome = await compare(match)
        return outcome if outcome is not None and all(map(math.isfinite, outcome)) else None

    answers: dict[Names, Outcome | None] = {}
    names = partial(_named, identity)
    shown: list[tuple[Match, Outcome | None]] = []

    def question(order: Match) -> Names:
        return (*names(order), len(shown)) if rematches else names(order)

    def orders(match: Match) -> list[Match]:
        # A tie of equal answers is recorded in both orders, so that it says nothing about the position offset.
        both = both_orders or _all_equal(names(match))
        return [match, Match(match.second, match.first)] if both else [match]

    def verdict(order: Match) -> Outcome | None:
        who = names(order)
        return _tie(who[0], answers) if _all_equal(who) else answers[question(order)]

    async def judge(wave: list[Match]) -> list[Outcome | None]:
        plan = [orders(match) for match in wave]
        flat = [order for presentations in plan for order in presentations]
        asked = [(question(order), order) for order in flat if not _all_equal(names(order))]
        await _ask_new(answers, asked, ask)
        heard = [_mean([verdict(order) for order in presentations]) for presentations in plan]
        # Last: how many were shown before it names the wave of a rematch.
        shown.extend([(order, verdict(order)) for order in flat])
        return heard

    strengths = await _drive(topology, judge)
    return Played(strengths, ComparisonGraph(*map(tuple, zip(*shown, strict=True))))


async def play_groups(topology: GroupTopology, select: Select, *, identity: Sequence[Hashable]) -> Strengths:
    """Drives a group tournament to its strengths.

    `identity` as in `play`: a group that shows the same texts in the same order again is not judged again,
    and one whose members are all equal has no verdict, without a call.
    """

    async def places_of_winners(group: list[int]) -> list[int] | None:
        # By place in the group, so that a verdict also holds for other entrants with the same texts.
        winners = await select(group)
        if winners is not None and not set(winners) <= set(group):
            raise ValueError(f"the winners {winners} are not all in the group {group}")
        return None if winners is None else [group.index(winner) for winner in winners]

    answers: dict[Names, list[int] | None] = {}
    names = partial(_named, identity)

    def verdict(group: list[int]) -> list[int] | None:
        places = None if _all_equal(names(group)) else answers[names(group)]
        return None if places is None else [group[place] for place in places]

    async def judge(wave: list[list[int]]) -> list[list[int] | None]:
        asked = [(names(group), group) for group in wave if not _all_equal(names(group))]
        await _ask_new(answers, asked, places_of_winners)
        return [verdict(group) for group in wave]

    return await _drive(topology, judge)


def planned_matches(
    topology: Generator[list[Question], list[Answer | None], Strengths], outcome: Callable[[Question], Answer]
) -> int:
    """How many matches or groups a topology asks for; in none of them does it depend on the outcomes."""
    count = 0
    with suppress(StopIteration):
        wave = next(topology)
        while True:
            count += len(wave)
            wave = topology.send([outcome(question) for question in wave])
    return count


async def _ask_new(
    answers: dict[Names, Answer | None],
    questions: Iterable[tuple[Names, Question]],
    ask_one: Callable[[Question], Awaitable[Answer | None]],
) -> None:
    """Asks all that have no answer yet, together, and one name once; a failure is kept, too."""
    new: dict[Names, Question] = {}
    for name, question in questions:
        if name not in answers:
            new.setdefault(name, question)
    tasks = [asyncio.ensure_future(ask_one(question)) for question in new.values()]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    answers.update(zip(new, found, strict=True))


async def _drive(
    topology: Generator[Wave, Reply, Strengths], judge: Callable[[Wave], Awaitable[Reply]]
) -> Strengths:
    try:
        wave = next(topology)
        while True:
            wave = topology.send(await judge(wave))
    except StopIteration as stop:
        strengths: Strengths = stop.value
        return strengths


def _named(identity: Sequence[Hashable], entrants: Sequence[int]) -> Names:
    return tuple(identity[entrant] for entrant in entrants)


def _all_equal(names: Names) -> bool:
    return len(set(names)) == 1


def _tie(name: Hashable, answers: Mapping[Names, Outcome | None]) -> Outcome:
    """Equal scores at the level that the judge has given this answer, else any answer, else 0."""
    known = [
        (who, score)
        for names, outcome in answers.items()
        if outcome is not None
        for who, score in zip(names[:2], outcome, strict=True)
    ]
    scores = [score for who, score in known if who == name] or [score for _, score in known] or [0.0]
    level = sum(scores) / len(scores)
    return Outcome(level, level)


def _mean(outcomes: Sequence[Outcome | None]) -> Outcome | None:
    """The mean over one order, or over an order and its swap; None when one is missing."""
    known = [outcome for outcome in outcomes if outcome is not None]
    if len(known) < len(outcomes):
        return None
    if len(known) == 1:
        return known[0]
    straight, swapped = known
    return Outcome((straight.first + swapped.second) / 2, (straight.second + swapped.first) / 2)
