"""Which stages a run has, and which Challenger writes the tasks of an iteration."""

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.run.schedule import challenger_of, promotion_warning, stages_of
from scope_selfplay.store.folder import Stage


@pytest.mark.parametrize(
    ("settings", "trained", "names"),
    [
        ([], [1, 2, 3], ["C_0", "C_1", "C_2", "C_3"]),
        (["challenger.freeze_after=1"], [1], ["C_0", "C_1", "C_1", "C_1"]),
        (["challenger.freeze_after=2"], [1, 2], ["C_0", "C_1", "C_2", "C_2"]),
        (["challenger.freeze_after=0"], [], ["C_0", "C_0", "C_0", "C_0"]),
    ],
)
def test_a_challenger_frozen_after_an_iteration_writes_all_later_tasks(
    settings: list[str], trained: list[int], names: list[str]
) -> None:
    config = load_config(None, settings)
    assert [iteration for iteration, stage in stages_of(config) if stage is Stage.CHALLENGER] == trained
    assert [challenger_of(config, iteration).name for iteration in range(4)] == names


def test_given_tasks_leave_the_training_of_the_solver_and_its_comparison() -> None:
    stages = stages_of(load_config(None, ["solver.tasks=tasks.jsonl", "iterations=2"]))
    after = [stage for stage in stages if stage[0] > 0]
    assert after == [(1, Stage.SOLVER), (1, Stage.COMPARE), (2, Stage.SOLVER), (2, Stage.COMPARE)]


MODEL_JUDGE = ["judge.kind=model", "judge.endpoint.base_url=http://127.0.0.1:1/v1"]
HELD_OUT_JUDGE = "judge.evaluate=[{base_url: 'http://127.0.0.1:2/v1'}]"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ([*MODEL_JUDGE], False),
        ([*MODEL_JUDGE, "compare.promotion=better"], True),
        ([*MODEL_JUDGE, "compare.stop=2"], True),
        ([*MODEL_JUDGE, "compare.stop=worse", "solver.reward=arenarl"], True),
        ([*MODEL_JUDGE, "compare.promotion=better", HELD_OUT_JUDGE], False),
        ([*MODEL_JUDGE, "compare.promotion=better", HELD_OUT_JUDGE.replace(":2", ":1")], True),
        # Rewards ask for grades, promotion for comparisons, elsewhere.
        (
            [
                *MODEL_JUDGE,
                "compare.promotion=better",
                "judge.endpoints.compare.base_url=http://127.0.0.1:2/v1",
            ],
            False,
        ),
        (["compare.promotion=better"], False),
    ],
)
def test_a_judge_that_is_optimised_and_promotes_is_warned_of(settings: list[str], warned: bool) -> None:
    warning = promotion_warning(load_config(None, settings))
    assert (warning is not None) is warned
    assert warning is None or "set judge.evaluate to another judge" in warning
