"""Which tasks the Solver trains on, in which order, and for how many steps."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.stages.train import given_order, steps_that_tasks_last

CASES = json.loads((Path(__file__).parents[2] / "reference" / "step_cases.json").read_text())["cases"]
NAMES = [f"t{number}" for number in range(10)]


def test_given_tasks_are_shuffled_anew_in_every_pass_and_none_is_left_out() -> None:
    order = list(islice(given_order(NAMES, seed=1, batch=5), 30))
    passes = [order[:10], order[10:20], order[20:]]
    assert all(sorted(each) == NAMES for each in passes)
    assert passes[0] != NAMES and len({tuple(each) for each in passes}) == 3
    assert list(islice(given_order(NAMES, seed=1, batch=5), 30)) == order
    assert list(islice(given_order(NAMES, seed=2, batch=5), 30)) != order


def test_an_iteration_goes_on_where_the_last_one_ended() -> None:
    order = list(islice(given_order(NAMES, seed=1, batch=2), 12))
    first, second, third = order[:4], order[4:8], order[8:]
    assert not set(first) & set(second) and set(first + second + third[:2]) == set(NAMES)


def test_a_batch_across_two_passes_has_no_task_twice() -> None:
    for seed in range(50):
        order = list(islice(given_order(NAMES, seed=seed, batch=7), 70))
        assert all(len(set(order[row : row + 7])) == 7 for row in range(0, 70, 7))
        assert all(sorted(order[row : row + 10]) == NAMES for row in range(0, 70, 10))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['accepted']} {case['settings']}")
def test_the_steps_follow_the_tasks_that_there_are(case: dict[str, Any]) -> None:
    """Appendix G."""
    config = load_config(None, case["settings"])
    assert steps_that_tasks_last(config, case["accepted"]) == case["steps"], case["why"]
