"""A rollout as training rows: the sampled ids and nothing else carry the loss; and rows cut into passes."""

import math
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutStatus,
    Turn,
)
from scope_selfplay.config.training import ChallengerConfig, RubricReward, SolverConfig
from scope_selfplay.designs.answers import format_score, reward_of_candidate, task_format_score
from scope_selfplay.designs.per_rollout import RubricDesign
from scope_selfplay.rewards.measures import joined_values
from scope_selfplay.training.job import row_metrics
from scope_selfplay.training.passes import (
    RewardedRollout,
    RolloutShare,
    RowSize,
    TrainingRow,
    continues,
    cut_passes,
    padding_factor,
    pass_tokens,
    rewarded_rollout,
    rows_from,
)
from tests.word_codec import WordCodec

ids = st.lists(st.integers(0, 99), max_size=6).map(tuple)


def rollout_of(turns: Sequence[Turn], **ended: Any) -> Rollout:
    """`ended`: its answer or task, and status."""
    return Rollout(id="r", role=Role.SOLVER, checkpoint="S_0", subject_id="t", turns=tuple(turns), **ended)


def growing(first: tuple[int, ...], parts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Turn]:
    """Turns in which every prompt is everything before it and what was heard since."""
    prompt, turns = first, []
    for sampled, heard in parts:
        turns.append(Turn(prompt_ids=prompt, ids=sampled, logprobs=tuple(-float(each) for each in sampled)))
        prompt = prompt + sampled + heard
    return turns


@given(ids, st.lists(st.tuples(ids.filter(len), ids), min_size=1, max_size=4))
def test_a_growing_conversation_is_one_row(
    first: tuple[int, ...], parts: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    turns = growing(first, parts)
    (row,) = rows_from(rollout_of(turns))
    whole = turns[-1].prompt_ids + turns[-1].ids
    assert tuple(row.prompt_ids + row.completion_ids) == whole and tuple(row.prompt_ids) == first
    sampled = [each for turn in turns for each in turn.ids]
    assert [token for token, kept in zip(row.completion_ids, row.mask, strict=True) if kept] == sampled
    logprobs = [value for value, kept in zip(row.logprobs, row.mask, strict=True) if kept]
    assert logprobs == [-float(each) for each in sampled]
    assert all(value == 0 for value, kept in zip(row.logprobs, row.mask, strict=True) if not kept)


def test_a_history_that_was_rewritten_gives_a_row_per_turn() -> None:
    first = Turn(prompt_ids=(1,), ids=(2, 3, 4))
    # The 2 was cut out of the second prompt, as thinking is.
    second = Turn(prompt_ids=(1, 3, 4, 9), ids=(5,))
    assert not continues(first, second)
    rewarded = rewarded_rollout(rollout_of([first, second]), 1.0)
    rows = rewarded.rows
    for rewrites_history in (False, True):
        measures = row_metrics([rewarded], rewrites_history=rewrites_history)
        assert joined_values([measures])["split"] == (not rewrites_history)
    assert [(row.prompt_ids, row.completion_ids, row.mask) for row in rows] == [
        ([1], [2, 3, 4], [1, 1, 1]),
        ([1, 3, 4, 9], [5], [1]),
    ]
    # A 0 would say that the token was certain, and weigh it by what the trainer finds for it.
    assert all(math.isnan(value) for row in rows for value in row.logprobs)
    for nothing in ([], [Turn(prompt_ids=(1,))]):
        assert rows_from(rollout_of(nothing)) == []


def turn(text: str, query: str | None = None) -> Turn:
    return Turn(ids=(1,), text=text, thinking="x", query=query)


SEARCHED = [turn("a", query="q"), turn("b", query="q"), turn("c")]


def total(rollout: Rollout, score: float, settings: SolverConfig | None = None) -> float:
    reward = RubricDesign(RubricReward(), settings or SolverConfig(), WordCodec().count).total(score, rollout)
    assert reward is not None
    return reward


def test_a_perfect_solver_gets_all_three_parts() -> None:
    rollout = rollout_of(SEARCHED, answer="short")
    assert format_score(rollout) == 1.0
    assert total(rollout, 1.0) == pytest.approx(1.0 + 0.5 + 0.1 * 2 / 3)
    assert (total(rollout_of([]), 0.0), format_score(rollout_of([]))) == (0.0, 0.0)


def test_the_length_factor_can_be_switched_off() -> None:
    rollout = rollout_of(SEARCHED, answer="word " * 3000)
    off = total(rollout, 1.0, SolverConfig(length_floor=1.0))
    assert off - total(rollout, 1.0) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("status", "mean", "structure", "reward"),
    [
        (CandidateStatus.ACCEPTED, 0.5, 1.0, 1.5),
        (CandidateStatus.ACCEPTED, 1.0, 1.0, 0.5),
        (CandidateStatus.ACCEPTED, 0.25, 0.6, 0.8),
        (CandidateStatus.REJECTED, None, 0.5, 0.25),
        (CandidateStatus.ACCEPTED, 0.5, 0.0, 0.0),
        (CandidateStatus.UNRESOLVED, None, 1.0, None),
    ],
)
def test_a_challenger_is_paid_for_form_and_for_tasks_at_the_frontier(
    status: CandidateStatus, mean: float | None, structure: float, reward: float | None
) -> None:
    provenance = Provenance(run="r", iteration=1, stage="challenger", document_id="d")
    candidate = Candidate(id="c", status=status, reason=Reason.ACCEPTED, mean=mean, provenance=provenance)
    written, failed = (
        rollout_of(SEARCHED, task="t", status=ended)
        for ended in (RolloutStatus.FINISHED, RolloutStatus.FAILED)
    )
    found = reward_of_candidate(written, candidate, structure, 0.0, ChallengerConfig())
    assert found == (None if reward is None else pytest.approx(reward))
    assert reward_of_candidate(failed, candidate, structure, 0.0, ChallengerConfig()) is None


def test_the_challengers_format_counts_searches_against_the_agreed_number() -> None:
    assert task_format_score(rollout_of(SEARCHED, task="t"), 2) == 1.0
    assert task_format_score(rollout_of(SEARCHED, task="t"), 4) == pytest.approx((1 + 0.5 + 1) / 3)
    assert task_format_score(rollout_of(SEARCHED), 1) == pytest.approx(2 / 3)
    assert task_format_score(rollout_of([]), 1) == 0.0


LENGTHS = st.lists(st.lists(st.integers(1, 400), max_size=30), min_size=1, max_size=4).filter(
    lambda processes: any(processes)
)


def test_passes_are_as_few_as_fit_and_the_one_that_computes_most_is_first() -> None:
    assert cut_passes([[4, 4]], 8, packed=True) == [[[0, 1]]]
    assert cut_passes([[15, 10, 1]], 20, packed=False) == [[[1, 2], [0]]]


def test_a_step_is_cut_alike_in_every_version() -> None:
    """So that a training that goes on adds up in the same order."""
    rng, found = Random(1), []
    for budget, packed in product((1, 30, 300, 1000), (False, True)):
        lengths = [[rng.randint(1, 400) for _ in range(rng.randrange(30))] for _ in range(3)]
        cuts = cut_passes(lengths, budget, packed=packed)
        found.append((cuts, padding_factor(lengths, cuts, packed=packed)))
    assert sha256(str(found).encode()).hexdigest()[:12] == "d2091643b6c4"
    assert padding_factor([[], []], [[[]], [[]]], packed=True) == 1.0


def test_a_rollout_counts_with_a_reward_and_a_sampled_token() -> None:
    unsampled, sampled = (TrainingRow([1, 2], [3, 4], mask, [0.0] * 2) for mask in ([0, 0], [0, 1]))
    found = RolloutShare.of(RewardedRollout([unsampled, sampled], 0.5))
    assert found == RolloutShare(0.5, True, (RowSize(4, 0), RowSize(4, 1))) and found.sampled == 1
    assert RolloutShare.of(RewardedRollout([], 0.5)) == RolloutShare(None, False, ())
    assert not RolloutShare.of(RewardedRollout([sampled], None)).counts
    assert not RolloutShare.of(RewardedRollout([unsampled], 0.5)).counts


@given(lengths=LENGTHS, budget=st.integers(1, 900), packed=st.booleans())
def test_every_row_is_in_one_pass_within_the_budget_and_all_processes_make_as_many(
    lengths: list[list[int]], budget: int, packed: bool
) -> None:
    cuts = cut_passes(lengths, budget, packed=packed)
    assert len({len(passes) for passes in cuts}) == 1 and cuts[0]
    for rows, passes in zip(lengths, cuts, strict=True):
        assert sorted(number for part in passes for number in part) == list(range(len(rows)))
        sizes = [pass_tokens(rows, part, packed=packed) for part in passes]
        assert sizes == sorted(sizes, reverse=True)
        assert all(size <= budget or len(part) == 1 for size, part in zip(sizes, passes, strict=True))
    assert padding_factor(lengths, cuts, packed=packed) >= 1.0
