"""The tables of `make bench-learning`: what they count, checked on invented runs whose answer is known."""

from benchmarks.learning.conditions import CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START
from benchmarks.learning.page import (
    Spoken,
    arms_table,
    curves,
    differences_table,
    in_one_sentence,
    seed_table,
    spoken,
    tasks_table,
    verdict,
)
from benchmarks.learning.results import Learnt, share_of_commonest

DEPTHS = {f"t{number}": 1 + number % 5 for number in range(50)}


def run_with(seed: int, shallow: list[float], deep: list[float]) -> Learnt:
    """A run whose greedy scores depend on depth alone; sampled ones are half of them."""
    asked = [
        {task: low if depth < 3 else high for task, depth in DEPTHS.items()}
        for low, high in zip(shallow, deep, strict=True)
    ]
    sampled = [{task: score / 2 for task, score in scores.items()} for scores in asked]
    return Learnt(
        seed, asked, sampled, DEPTHS, [0.6, 0.5], [1.2, 2.5], [0.4, 0.5], [0.7, 0.25], [True, True], 4.0
    )


MOVING = [run_with(1, [0.5, 1.0, 1.0], [0.0, 0.2, 0.8]), run_with(2, [0.5, 0.9, 0.8], [0.0, 0.0, 0.0])]
STILL = [run_with(1, [0.5, 1.0, 1.0], [0.0, 0.2, 0.3]), run_with(2, [0.5, 0.9, 0.8], [0.0, 0.0, 0.1])]
RESULTS = {CO_EVOLVING: MOVING, FROZEN_AFTER_1: STILL}


def test_scores_by_seed_and_how_often_a_solver_is_better_than_the_one_before() -> None:
    rows = seed_table(MOVING).splitlines()
    assert rows[0].startswith("| seed | S_0 | S_1 | S_2 | S_2 over S_0")
    # Two of five depths are shallow: 0.4 * 0.5, 0.4 * 1 + 0.6 * 0.2, 0.4 * 1 + 0.6 * 0.8.
    assert rows[2].startswith("| 1 | 0.20 | 0.52 | 0.88 | +0.68 [")
    assert rows[2].endswith("| 1.2 -> 2.5 | 4.0 |")
    said = verdict(MOVING)
    assert "2 of 2 seeds" in said and "3 of 4 steps" in said, "seed 2 falls from 0.36 to 0.32"


def test_deep_tasks_and_sampled_answers_stand_apart() -> None:
    table = arms_table(RESULTS)
    assert "| co-evolving | 3 to 5 links, greedy | 0.000 | 0.100 | 0.400 |" in table
    assert "| Challenger frozen at C_1 | 3 to 5 links, sampled | 0.000 | 0.050 | 0.100 |" in table
    written = tasks_table(RESULTS)
    assert "| co-evolving | mean score of the accepted tasks | 0.60 | 0.50 |" in written
    assert "| co-evolving | candidates accepted, share | 0.70 | 0.25 |" in written
    assert "| co-evolving | accepted tasks with the commonest chain, share | 0.40 | 0.50 |" in written


def test_the_commonest_chain_is_told_from_its_order() -> None:
    chains = [("heir", "rival"), ("rival", "heir"), ("heir", "rival"), ("heir",)]
    assert share_of_commonest(chains) == 0.5


def test_a_frozen_challenger_is_compared_by_seed_with_an_interval() -> None:
    *_, first, second, over_seeds = differences_table(RESULTS).splitlines()
    # Equal on shallow tasks, +0.5 on each deep one; in seed 2 the frozen one is ahead.
    assert first.startswith("| 1 | +0.30 [") and first.endswith("| +0.50 [+0.50, +0.50] |")
    assert second.endswith("| -0.10 [-0.10, -0.10] |")
    # Two seeds, .5 and -.1: .2 -+ 12.71 * .3.
    assert over_seeds.endswith("| +0.20 [-3.61, +4.01] |")
    assert in_one_sentence(RESULTS).endswith(
        "0.40 after 2 iterations; with a Challenger that stops learning after iteration 1, 0.20."
    )
    assert in_one_sentence({**RESULTS, FROZEN_FROM_START: MOVING}).endswith(
        "one that is never trained, 0.40."
    )


def test_the_curves_name_every_condition_and_the_answers_are_shown_whole() -> None:
    drawn = curves(RESULTS)
    assert drawn.startswith("<svg") and drawn.count("Challenger frozen at C_1") == 1
    shown = spoken([Spoken("Report it.", ["Identifies it."], ["Corvale.", ""])], 0, 20)
    assert shown.splitlines() == [
        "- **Report it.**",
        "  - wanted: Identifies it.",
        "  - S_0: Corvale.",
        "  - S_1: (no answer)",
    ]
