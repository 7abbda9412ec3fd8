"""Documents by stage: what a run needs, in the order in which its stages take them."""

import pytest

from scope_selfplay.base.errors import State
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.plan.preflight import Pool, check_documents, document_needs
from scope_selfplay.store.folder import Stage


def config_of(*settings: str) -> RunConfig:
    return load_config(None, ["compare.tasks=10", "iterations=1", *settings])


def test_the_papers_run_needs_1280_documents_to_train_and_5120_to_make_tasks() -> None:
    needs = document_needs(load_config(None, ["iterations=1"]))
    assert [(need.iteration, need.stage, need.count, need.least) for need in needs] == [
        (0, Stage.TASKS, 200, 1),
        (1, Stage.CHALLENGER, 1280, 1280),
        (1, Stage.TASKS, 5120, 256),
    ]


def test_39_documents_stop_the_papers_run_before_anything_is_spent() -> None:
    check = check_documents(config_of(), Pool(39))
    assert check.state is State.STOP
    assert "iteration 1 train the Challenger needs 1,280 and would find 29" in check.what
    assert check.advice.startswith("add 6,371 documents or more, or lower compare.tasks, challenger.steps")


@pytest.mark.parametrize(
    ("documents", "held_out", "state"),
    [
        # 10 held-out tasks, 4 x 5 to train, a target of 30 of which a batch of 6 is the least.
        (60, None, State.WARNING),
        (36, None, State.WARNING),
        (35, None, State.STOP),
        # 10 / 0.7 + 20 + 30 / 0.4 documents, rounded up: as tasks are expected to be kept.
        (110, None, State.OK),
        (109, None, State.WARNING),
        (95, 15, State.OK),
        (95, 14, State.WARNING),
        (94, 15, State.WARNING),
        (25, 15, State.STOP),
        (95, 0, State.STOP),
    ],
)
def test_a_run_is_held_against_its_pools(documents: int, held_out: int | None, state: State) -> None:
    config = config_of(
        "challenger.steps=4", "challenger.batch=5", "tasks.target=30", "solver.batch=6", "solver.steps=5"
    )
    assert check_documents(config, Pool(documents, held_out)).state is state


def test_later_iterations_find_what_earlier_ones_left() -> None:
    settings = ("challenger.steps=1", "challenger.batch=10", "tasks.target=10", "solver.batch=5")
    assert check_documents(config_of(*settings, "iterations=2"), Pool(40)).state is State.STOP
    assert "iteration 2 make tasks" in check_documents(config_of(*settings, "iterations=2"), Pool(44)).what
    assert check_documents(config_of(*settings, "challenger.freeze_after=0"), Pool(40)).state is State.OK


def test_a_run_on_given_tasks_needs_no_documents() -> None:
    config = config_of("solver.tasks=a.jsonl", "compare.given=b.jsonl")
    assert document_needs(config) == [] and check_documents(config, Pool(3)).state is State.OK
