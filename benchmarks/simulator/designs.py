"""The reward designs as they are compared: how each judges a group, and how strengths become rewards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.simulator.judge import Quality, SimulatedJudge
from benchmarks.simulator.sessions import Session
from scope_selfplay.keys import rng_from
from scope_selfplay.ranking.brackets import double_elimination, single_elimination
from scope_selfplay.ranking.margins import balanced, fit_margins, fit_step, position_offset
from scope_selfplay.ranking.matches import Strengths, Topology, min_max, rank_rewards
from scope_selfplay.ranking.rounds import group_tournament, swiss
from scope_selfplay.ranking.topologies import anchor, live, round_robin

STEP = 64
"""Groups of one training step, over which the judge's offset and level are pooled."""


class Trial(NamedTuple):
    """One group under one design: what came out, and what it cost. `answers`: shown in all calls together."""

    strengths: Strengths
    rewards: Strengths
    judged: frozenset[int]
    calls: int
    answers: int
    waves: int


@dataclass(frozen=True)
class Design:
    """`play` judges one group. `pooled`: all groups of a step are fitted again with their common offset.

    `levels`: also with the level of the judge's scores, as the shipped `balanced`. `ours`: in none of the papers.
    """

    name: str
    play: Callable[[Session], Strengths]
    reward: Callable[[Strengths], Strengths]
    pooled: bool = False
    levels: bool = False

    @property
    def ours(self) -> bool:
        return self.pooled


def run(design: Design, qualities: Sequence[Quality], judge: SimulatedJudge, seed: int) -> list[Trial]:
    """Plays every group under its own seed, drawn from (seed, design, group)."""
    trials = []
    for start in range(0, len(qualities), STEP):
        groups = range(start, min(start + STEP, len(qualities)))
        sessions = [
            Session(qualities[group], judge, rng_from("group", seed, design.name, group)) for group in groups
        ]
        strengths = [design.play(session) for session in sessions]
        if design.pooled:
            strengths = _refitted(sessions, design.levels)
        trials += [
            Trial(
                strengths=values,
                rewards=design.reward(values),
                judged=frozenset(session.judged),
                calls=session.calls,
                answers=session.answers,
                waves=session.waves,
            )
            for session, values in zip(sessions, strengths, strict=True)
        ]
    return trials


def designs(n: int) -> list[Design]:
    """Every design for groups of n, at the budgets of the papers and of `balanced`."""
    pairs = n * (n - 1) // 2
    live_calls = sum(min(earlier, 3) for earlier in range(n))
    budgets = sorted({2 * (n - 1), live_calls, 4 * (n - 1), pairs, 2 * pairs})
    return [
        _in_both_orders("round robin", lambda session: round_robin(session.n)),
        _in_both_orders("anchor", lambda session: anchor(session.n)),
        _in_both_orders("anchor, own scores", lambda session: anchor(session.n, score="own")),
        _in_both_orders("single elimination", lambda session: single_elimination(session.n)),
        _in_both_orders(
            "single elimination, own scores", lambda session: single_elimination(session.n, score="own")
        ),
        _in_both_orders("double elimination", lambda session: double_elimination(session.n, session.rng)),
        _in_both_orders(
            "double elimination, own scores",
            lambda session: double_elimination(session.n, session.rng, score="own"),
        ),
        _in_both_orders("Swiss", lambda session: swiss(session.n, session.rng)),
        Design("live, Bradley-Terry", lambda session: session.play(_live(session)), min_max),
        Design("live, margins", lambda session: session.play(_live(session)), min_max, pooled=True),
        _groups("groups of 2, M=4", group_size=2, winners=1, repeats=4),
        _groups("groups of 4, M=8", group_size=4, winners=2, repeats=8),
        Design("rubric, 5 criteria", lambda session: session.grade(5), list),
        *(_balanced(calls, levels=True) for calls in budgets),
        *(_balanced(calls, levels=False) for calls in budgets),
    ]


def _in_both_orders(name: str, topology: Callable[[Session], Topology]) -> Design:
    return Design(name, lambda session: session.play(topology(session), both_orders=True), rank_rewards)


def _groups(name: str, *, group_size: int, winners: int, repeats: int) -> Design:
    def play(session: Session) -> Strengths:
        topology = group_tournament(
            session.n, session.rng, group_size=group_size, winners=winners, final=winners, repeats=repeats
        )
        return session.play_groups(topology, winners)

    return Design(name, play, min_max)


def _balanced(calls: int, *, levels: bool) -> Design:
    def play(session: Session) -> Strengths:
        return session.play(balanced(session.n, calls, session.rng))

    name = f"balanced, {calls} calls" if levels else f"balanced, margins, {calls} calls"
    return Design(name, play, min_max, pooled=True, levels=levels)


def _live(session: Session) -> Topology:
    return live(session.rng.sample(range(session.n), session.n))


def _refitted(sessions: Sequence[Session], levels: bool) -> list[Strengths]:
    graphs = [(session.matches, session.outcomes) for session in sessions]
    sizes = [session.n for session in sessions]
    if levels:
        return fit_step(sizes, graphs)
    offset = position_offset(graphs)
    return [fit_margins(size, *graph, offset=offset) for size, graph in zip(sizes, graphs, strict=True)]
