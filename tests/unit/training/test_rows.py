"""A rollout as training rows: the sampled ids and nothing else carry the loss."""

import math
from collections.abc import Sequence

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
from scope_selfplay.config.rewards import RubricReward
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.designs.answers import format_score, reward_of_candidate, task_format_score
from scope_selfplay.designs.per_rollout import RubricDesign
from scope_selfplay.training.rows import continues, rows_from
from tests.word_codec import WordCodec

ids = st.lists(st.integers(0, 99), max_size=6).map(tuple)


def rollout_of(
    turns: Sequence[Turn],
    *,
    answer: str | None = None,
    task: str | None = None,
    status: RolloutStatus = RolloutStatus.FINISHED,
) -> Rollout:
    return Rollout(
        id="r",
        role=Role.SOLVER,
        checkpoint="S_0",
        subject_id="t",
        turns=tuple(turns),
        answer=answer,
        task=task,
        status=status,
    )


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
    (row,) = rows_from(rollout_of(turns)).rows
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
    rows, split = rows_from(rollout_of([first, second]))
    assert split
    assert [(row.prompt_ids, row.completion_ids, row.mask) for row in rows] == [
        ([1], [2, 3, 4], [1, 1, 1]),
        ([1, 3, 4, 9], [5], [1]),
    ]


def test_a_rollout_that_sampled_nothing_has_no_row() -> None:
    assert rows_from(rollout_of([])).rows == []
    assert rows_from(rollout_of([Turn(prompt_ids=(1,))])).rows == []


def test_missing_log_probabilities_are_nan() -> None:
    """A 0 would say that the token was certain, and weigh it by what the trainer finds for it."""
    (row,) = rows_from(rollout_of([Turn(prompt_ids=(1,), ids=(2,))])).rows
    assert len(row.logprobs) == 1 and math.isnan(row.logprobs[0])


def turn(text: str, *, thinking: str | None = "x", query: str | None = None) -> Turn:
    return Turn(ids=(1,), text=text, thinking=thinking, query=query)


SEARCHED = [turn("a", query="q"), turn("b", query="q"), turn("c")]


def total(rollout: Rollout, score: float, settings: SolverConfig | None = None) -> float:
    reward = RubricDesign(RubricReward(), settings or SolverConfig(), WordCodec().count).total(score, rollout)
    assert reward is not None
    return reward


def test_a_perfect_solver_gets_all_three_parts() -> None:
    rollout = rollout_of(SEARCHED, answer="short")
    assert format_score(rollout) == 1.0
    assert total(rollout, 1.0) == pytest.approx(1.0 + 0.5 + 0.1 * 2 / 3)


def test_the_length_factor_can_be_switched_off() -> None:
    rollout = rollout_of(SEARCHED, answer="word " * 3000)
    off = total(rollout, 1.0, SolverConfig(length_floor=1.0))
    assert off - total(rollout, 1.0) == pytest.approx(0.95)


def test_a_rollout_that_ended_before_its_first_turn_has_no_format() -> None:
    assert (total(rollout_of([]), 0.0), format_score(rollout_of([]))) == (0.0, 0.0)
    assert task_format_score(rollout_of([]), 1) == 0.0


def candidate_of(status: CandidateStatus, mean: float | None) -> Candidate:
    provenance = Provenance(run="r", iteration=1, stage="challenger", document_id="d")
    return Candidate(id="c", status=status, reason=Reason.ACCEPTED, mean=mean, provenance=provenance)


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
    found = reward_of_candidate(
        rollout_of(SEARCHED, task="t"), candidate_of(status, mean), structure, ChallengerConfig()
    )
    assert found == (None if reward is None else pytest.approx(reward))


def test_a_failed_challenger_rollout_is_masked() -> None:
    rollout = rollout_of(SEARCHED, status=RolloutStatus.FAILED)
    assert (
        reward_of_candidate(rollout, candidate_of(CandidateStatus.ACCEPTED, 0.5), 1.0, ChallengerConfig())
        is None
    )


def test_the_challengers_format_counts_searches_against_the_agreed_number() -> None:
    assert task_format_score(rollout_of(SEARCHED, task="t"), 2) == 1.0
    assert task_format_score(rollout_of(SEARCHED, task="t"), 4) == pytest.approx((1 + 0.5 + 1) / 3)
    assert task_format_score(rollout_of(SEARCHED), 1) == pytest.approx(2 / 3)
