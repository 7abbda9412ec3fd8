"""Cutting an update's rows into passes: what it wastes at the paper's scale, and that all ranks make as many."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.training.loss import Average
from scope_selfplay.training.passes import (
    RolloutShare,
    RowSize,
    UpdateRules,
    cut_passes,
    padding_factor,
    pass_tokens,
    plan_updates,
)

LENGTHS = st.lists(st.lists(st.integers(1, 400), max_size=30), min_size=1, max_size=4).filter(
    lambda processes: any(processes)
)
ROWS = st.builds(
    lambda sampled, others: RowSize(sampled + others, sampled), st.integers(0, 40), st.integers(1, 60)
)
SHARES = st.builds(
    lambda reward, rows, masked: RolloutShare(
        reward, reward is not None and not masked and any(row.sampled for row in rows), tuple(rows)
    ),
    st.none() | st.sampled_from((0.0, 1.0)),
    st.lists(ROWS, max_size=4),
    st.booleans(),
)
TABLES = st.lists(
    st.lists(st.lists(SHARES, min_size=1, max_size=4), min_size=2, max_size=2), min_size=1, max_size=4
)


def paper_step(seed: int) -> list[list[int]]:
    """Tokens of the rows of a Solver step (Table 9: 256 tasks, 8 rollouts, at most 2,048 + 8,192 tokens): mean about
    4,000, with a long tail, dealt to four processes.
    """
    rng = random.Random(seed)
    drawn = [min(10_240, max(300, round(rng.lognormvariate(8.12, 0.6)))) for _ in range(256 * 8)]
    assert 3_600 < sum(drawn) / len(drawn) < 4_400
    return [drawn[process::4] for process in range(4)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [16_384, 32_768])
@pytest.mark.parametrize("packed", [False, True])
def test_a_paper_shaped_step_wastes_at_most_a_tenth_waiting_included(
    seed: int, budget: int, packed: bool
) -> None:
    lengths = paper_step(seed)
    cuts = cut_passes(lengths, budget, packed=packed)
    assert padding_factor(lengths, cuts, packed=packed) <= (1.05 if packed else 1.10)
    assert len(cuts[0]) <= 1.35 * sum(map(sum, lengths)) / 4 / budget


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


@given(
    table=TABLES,
    average=st.sampled_from(Average),
    updates=st.integers(1, 2),
    budget=st.integers(1, 300),
    packed=st.booleans(),
    teaches_flat=st.booleans(),
)
def test_a_plan_has_what_counts_once_and_its_tokens_weigh_what_the_loss_says(
    table: list[list[list[RolloutShare]]],
    average: Average,
    updates: int,
    budget: int,
    packed: bool,
    teaches_flat: bool,
) -> None:
    """Made of the table alone, it is the same on whichever rank makes it."""
    taught = [[float(place % 2) for place, _ in enumerate(group)] for of_rank in table for group in of_rank]
    rules = UpdateRules(average, updates, budget, packed, 100, teaches_flat)
    plans = plan_updates(table, taught, rules)
    assert plans == plan_updates(table, taught, rules) and len(plans) == updates
    for number, plan in enumerate(plans):
        assert len(plan.passes) == len(table) and len({len(passes) for passes in plan.passes}) == 1
        left, weight, counted = iter(taught), 0.0, 0
        for groups, passes in zip(table, plan.passes, strict=True):
            expected, rollout = [], 0
            sizes = [row for group in groups for share in group for row in [share.rows]]
            for place, group in enumerate(groups):
                for share, advantage in zip(group, next(left), strict=True):
                    if share.counts and place % updates == number:
                        counted += 1
                        if advantage or teaches_flat:
                            expected += [(rollout, row, advantage) for row, _ in enumerate(share.rows)]
                    rollout += 1
            found = [row for part in passes for row in part]
            assert sorted((row.rollout, row.row, row.advantage) for row in found) == sorted(expected)
            weight += sum(row.weight * sizes[row.rollout][row.row].sampled for row in found)
            assert all(row.tokens == sizes[row.rollout][row.row].tokens for row in found)
        if counted and teaches_flat and average is not Average.BUDGET:
            assert weight == pytest.approx(1.0)
        assert weight <= 1 + 1e-9 or average is Average.BUDGET
