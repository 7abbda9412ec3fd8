"""The comparison graph: checkpoints as nodes, what the judge said between two of them as an edge. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from scope_selfplay.evaluation.pairings import CheckpointAnswers
from scope_selfplay.evaluation.strengths import JudgedPair
from scope_selfplay.schemas import Comparison, Value
from scope_selfplay.store.ratings import CheckpointPair


class CheckpointNode(Value):
    """A checkpoint; its rating is how far it lies above the first one, and `promoted` says that training went on from
    it."""

    name: str
    rating: float | None
    low: float | None
    high: float | None
    promoted: bool


class ComparisonGraph(Value):
    nodes: tuple[CheckpointNode, ...]
    edges: tuple[CheckpointPair, ...]


def owners(contestants: Iterable[CheckpointAnswers]) -> dict[str, tuple[str, str]]:
    """Rollout id -> (checkpoint, task id)."""
    return {rollout.id: (each.name, task) for each in contestants for task, rollout in each.rollouts.items()}


def judged(comparisons: Iterable[Comparison], owner: Mapping[str, tuple[str, str]]) -> list[JudgedPair]:
    """Every comparison that has an outcome."""
    return [
        JudgedPair(
            owner[each.first_id][1],
            owner[each.first_id][0],
            owner[each.second_id][0],
            each.outcome,
            asked=each.verdict.attempts > 0,
        )
        for each in comparisons
        if each.outcome is not None
    ]


def edges(
    names: Sequence[str], comparisons: Iterable[Comparison], owner: Mapping[str, tuple[str, str]]
) -> list[CheckpointPair]:
    """One edge per pair that met, in the order of `names` (oldest first)."""
    meetings: dict[tuple[str, str], list[tuple[Comparison, bool]]] = {}
    for each in comparisons:
        first, second = owner[each.first_id][0], owner[each.second_id][0]
        newer_first = names.index(first) > names.index(second)
        pair = (second, first) if newer_first else (first, second)
        meetings.setdefault(pair, []).append((each, newer_first))
    ordered = sorted(meetings, key=lambda pair: (names.index(pair[0]), names.index(pair[1])))
    return [_edge(older, newer, meetings[older, newer]) for older, newer in ordered]


def _edge(older: str, newer: str, met: Sequence[tuple[Comparison, bool]]) -> CheckpointPair:
    known = [(each, newer_first) for each, newer_first in met if each.outcome is not None]
    margins = [
        (each.outcome.first - each.outcome.second) * (1 if newer_first else -1)
        for each, newer_first in known
        if each.outcome is not None
    ]
    asked = [(each, newer_first) for each, newer_first in known if each.verdict.attempts]
    return CheckpointPair(
        older=older,
        newer=newer,
        wins=sum(margin > 0 for margin in margins),
        ties=sum(margin == 0 for margin in margins),
        losses=sum(margin < 0 for margin in margins),
        equal=len(known) - len(asked),
        failed=len(met) - len(known),
        newer_first=sum(newer_first for _, newer_first in asked),
        mean_margin=sum(margins) / len(margins) if margins else None,
    )
