"""How the rollouts of a step become rows and updates of the weights, and these the forward passes of each rank.

Rows hold exactly the ids that the policy saw and sampled, and a mask of the sampled ones: nothing is decoded and
encoded again. A row per rollout exists only where every prompt begins with the previous prompt and sample; where
history was rewritten (Qwen3 hides earlier thinking), each turn is a row. Several rows of one rollout share its
advantage and weigh as much as one row would (`loss`).

A plan is a pure function of what all ranks know of all rollouts (`Table`), so all make the same number of passes, some
of them empty: ranks meet in the collective calls of every pass, and each waits there for the one with the most tokens.
Passes are cut by tokens. Their rows are packed one behind the other where the attention kernel keeps them apart, else
each is padded on the right to the longest of its pass, where a causal model needs no mask for it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from scope_selfplay.base.values import Rollout, RolloutStatus, Turn
from scope_selfplay.training.loss import Average, Counts, token_weight


@dataclass(frozen=True)
class TrainingRow:
    """`mask` (1: sampled) and `logprobs` (the engine's; NaN: unknown) are as long as `completion_ids`."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class RewardedRollout:
    """One rollout of a step: its rows (none when nothing was sampled) and its reward (None masks it)."""

    rows: Sequence[TrainingRow]
    reward: float | None
    truncated: bool = False


def rewarded_rollout(rollout: Rollout, reward: float | None) -> RewardedRollout:
    """The rows that a rollout is trained on, with its reward."""
    return RewardedRollout(rows_from(rollout), reward, rollout.status is RolloutStatus.TRUNCATED)


def rows_from(rollout: Rollout) -> list[TrainingRow]:
    """One row for the whole rollout where its prompts continue each other, else one row per turn."""
    turns = [turn for turn in rollout.turns if turn.ids]
    if turns and all(continues(before, after) for before, after in pairwise(turns)):
        return [_joined(turns)]
    return [_joined([turn]) for turn in turns]


def continues(before: Turn, after: Turn) -> bool:
    """Whether a turn's prompt begins with everything that the turn before it saw and sampled."""
    seen = before.prompt_ids + before.ids
    return after.prompt_ids[: len(seen)] == seen


def _joined(turns: Sequence[Turn]) -> TrainingRow:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    start = len(turns[0].prompt_ids)
    for turn in turns:
        between = turn.prompt_ids[start + len(ids) :]
        ids += [*between, *turn.ids]
        mask += [0] * len(between) + [1] * len(turn.ids)
        logprobs += [0.0] * len(between) + list(turn.logprobs or [math.nan] * len(turn.ids))
    return TrainingRow(list(turns[0].prompt_ids), ids, mask, logprobs)


class RowSize(NamedTuple):
    """Tokens of a row, and those of them that were sampled."""

    tokens: int
    sampled: int


class RolloutShare(NamedTuple):
    """What all ranks know of a rollout; `counts`: it takes part in the update."""

    reward: float | None
    counts: bool
    rows: tuple[RowSize, ...]

    @classmethod
    def of(cls, rollout: RewardedRollout) -> "RolloutShare":
        rows = tuple(RowSize(row.length, sum(row.mask)) for row in rollout.rows)
        reward = rollout.reward if rows else None
        return cls(reward, reward is not None and any(row.sampled for row in rows), rows)

    @property
    def sampled(self) -> int:
        return sum(row.sampled for row in self.rows)


Table = Sequence[Sequence[Sequence[RolloutShare]]]
"""By rank, group and member."""
Passes = list[list[int]]
"""Numbers of rows, pass by pass."""


@dataclass(frozen=True)
class UpdateRules:
    """`budget`: tokens of a pass; `max_response`: tokens that a rollout may spend after its prompt.

    `teaches_flat`: rows of advantage 0 are computed; without a KL or router loss nothing is learnt from them.
    """

    average: Average
    updates: int
    budget: int
    packed: bool
    max_response: int
    teaches_flat: bool


class PlannedRow(NamedTuple):
    """A row by its place among the rollouts of its rank, with what each of its sampled tokens weighs in the loss."""

    rollout: int
    row: int
    tokens: int
    advantage: float
    weight: float


@dataclass(frozen=True)
class UpdatePlan:
    """`passes` by rank, with the `tokens` of all of them; `padding`: those computed or waited for, over these."""

    passes: Sequence[Sequence[Sequence[PlannedRow]]]
    tokens: int
    padding: float


def plan_updates(table: Table, advantages: Sequence[Sequence[float]], rules: UpdateRules) -> list[UpdatePlan]:
    """The updates of a step, from the advantages of its groups, rank after rank; groups go to the updates in turn.

    A flat group counts in what the loss divides by, and its rows are not computed unless `teaches_flat`.
    """
    scored = iter(advantages)
    counted: list[list[list[_Counted]]] = [[[] for _ in table] for _ in range(rules.updates)]
    for rank, groups in enumerate(table):
        places = iter(range(sum(map(len, groups))))
        for number, group in enumerate(groups):
            known = zip(group, next(scored), places, strict=False)
            counted[number % rules.updates][rank] += [each for each in known if each[0].counts]
    return [_planned(of_update, rules) for of_update in counted]


_Counted = tuple[RolloutShare, float, int]
"""A rollout, its advantage, and its place among those of its rank."""


def _planned(counted: Sequence[Sequence[_Counted]], rules: UpdateRules) -> UpdatePlan:
    sampled = [share.sampled for rank in counted for share, _, _ in rank]
    counts = Counts(len(sampled), sum(sampled), rules.max_response)
    rows = [
        [
            PlannedRow(rollout, place, row.tokens, advantage, weight)
            for share, advantage, rollout in rank
            if advantage or rules.teaches_flat
            for weight in [token_weight(rules.average, share.sampled, counts)]
            for place, row in enumerate(share.rows)
        ]
        for rank in counted
    ]
    lengths = [[row.tokens for row in rank] for rank in rows]
    cuts = cut_passes(lengths, rules.budget, packed=rules.packed)
    passes = [
        [[rank[place] for place in places] for places in cut] for rank, cut in zip(rows, cuts, strict=True)
    ]
    return UpdatePlan(passes, sum(map(sum, lengths)), padding_factor(lengths, cuts, packed=rules.packed))


def cut_passes(lengths: Sequence[Sequence[int]], budget: int, *, packed: bool) -> list[Passes]:
    """The passes of every rank, from the tokens of the rows of every rank.

    No pass is over `budget` tokens, padding included, but for a row that is longer by itself. Passes come with the
    largest first, so that those that ranks make together are alike; a rank with too few rows has empty ones.
    """
    if not packed:
        count = max(1, *(len(_padded_runs(rows, budget)) for rows in lengths))
        return [_padded_passes(rows, budget, count) for rows in lengths]
    count = max(1, *(-(-sum(rows) // budget) for rows in lengths))
    while True:
        cuts = [_even_passes(rows, count) for rows in lengths]
        pairs = [(rows, part) for rows, passes in zip(lengths, cuts, strict=True) for part in passes]
        if all(len(part) < 2 or pass_tokens(rows, part, packed=True) <= budget for rows, part in pairs):
            return cuts
        count += 1


def pass_tokens(rows: Sequence[int], numbers: Sequence[int], *, packed: bool) -> int:
    """The tokens that a pass over these rows computes."""
    chosen = [rows[number] for number in numbers]
    return sum(chosen) if packed else max(chosen, default=0) * len(chosen)


def padding_factor(lengths: Sequence[Sequence[int]], cuts: Sequence[Passes], *, packed: bool) -> float:
    """Tokens that are computed or waited for, by all ranks, over the real ones; 1 where there are none."""
    lasting = 0
    for together in zip(*cuts, strict=True):
        sizes = (pass_tokens(rows, part, packed=packed) for rows, part in zip(lengths, together, strict=True))
        lasting += max(sizes)
    real = sum(map(sum, lengths))
    return lasting * len(lengths) / real if real else 1.0


def _even_passes(rows: Sequence[int], count: int) -> Passes:
    """The longest row that is left goes to the pass that has least; largest pass first."""
    loads = [(0, number) for number in range(count)]
    heapify(loads)
    passes: Passes = [[] for _ in range(count)]
    for number in _longest_first(rows):
        load, place = loads[0]
        passes[place].append(number)
        heapreplace(loads, (load + rows[number], place))
    return sorted(passes, key=lambda numbers: -pass_tokens(rows, numbers, packed=True))


def _padded_passes(rows: Sequence[int], budget: int, count: int) -> Passes:
    """`count` runs of rows of similar length, none larger than it has to be."""
    least = bisect_left(range(budget), True, key=lambda tokens: len(_padded_runs(rows, tokens)) <= count)
    passes = _padded_runs(rows, least)
    while len(passes) < count:
        largest = max(passes, key=len, default=[])
        half = len(largest) // 2
        if half:
            passes.remove(largest)
            passes += [largest[:half], largest[half:]]
        else:
            passes.append([])
    return sorted(passes, key=lambda numbers: -pass_tokens(rows, numbers, packed=False))


def _padded_runs(rows: Sequence[int], budget: int) -> Passes:
    """As few runs as fit, longest rows first."""
    runs: Passes = []
    for number in _longest_first(rows):
        if runs and (len(runs[-1]) + 1) * rows[runs[-1][0]] <= budget:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _longest_first(rows: Sequence[int]) -> list[int]:
    return sorted(range(len(rows)), key=lambda number: -rows[number])


class BatchRow(NamedTuple):
    """A row in a pass; `reference`: the log-probabilities of M0 of its completion, where they are known."""

    row: TrainingRow
    advantage: float = 0.0
    weight: float = 0.0
    reference: Sequence[float] | None = None

    @classmethod
    def of(cls, planned: PlannedRow, rows: Any, references: Any) -> "BatchRow":
        """From the rows of all rollouts and what M0 says of them, which is empty without a KL."""
        reference = references[planned.rollout][planned.row] if references else None
        return cls(rows[planned.rollout][planned.row], planned.advantage, planned.weight, reference)


class Batch(NamedTuple):
    """The rows of one forward pass as tensors of (rows, longest row), or of (1, tokens of all) where they are packed.

    `drawn_logps` are the engine's, NaN where it does not know them; `rows` says whose row a token is. Without rows it
    has one that counts for nothing: a rank must pass when others do.
    """

    ids: Any
    sampled: Any
    weights: Any
    advantages: Any
    drawn_logps: Any
    references: Any
    rows: Any
    lengths: Sequence[int]
    packed: bool

    def of_rows(self, values: Any) -> list[Any]:
        """What a tensor of the batch's shape says of each row, without padding."""
        if self.packed:
            return list(values[0].split(list(self.lengths)))
        return [line[:length] for line, length in zip(values, self.lengths, strict=True)]


def batch_of(chosen: Sequence[BatchRow], filler: int, device: Any, *, packed: bool) -> Batch:
    """The tensors of a pass, on `device`."""
    import torch

    given = chosen or [BatchRow(TrainingRow([filler], [filler], [1], [float("nan")]))]
    lengths = [each.row.length for each in given]

    def tensor(kind: Any, of_tokens: Callable[[BatchRow], Sequence[Any]], padding: int = 0) -> Any:
        """Of all tokens of each row, or of those of its completion alone."""
        table = np.full((len(lengths), max(lengths)), padding, kind)
        for line, length, values in zip(table, lengths, map(of_tokens, given), strict=True):
            line[length - len(values) : length] = values
        if packed:
            table = np.concatenate([line[:length] for line, length in zip(table, lengths, strict=True)])[None]
        return torch.from_numpy(table).to(device)

    known = [each.reference is not None for each in given]
    assert all(known) or not any(known), "the reference is known of all rows or of none"
    places = iter(range(len(given)))
    return Batch(
        tensor(np.int64, lambda each: each.row.prompt_ids + each.row.completion_ids, filler),
        tensor(np.bool_, lambda each: each.row.mask),
        tensor(np.float32, lambda each: [each.weight * kept for kept in each.row.mask]),
        tensor(np.float32, lambda each: [each.advantage] * each.row.length),
        tensor(np.float32, lambda each: each.row.logprobs),
        tensor(np.float32, lambda each: each.reference or ()) if all(known) else None,
        tensor(np.int64, lambda each: [next(places)] * each.row.length),
        lengths,
        packed,
    )
