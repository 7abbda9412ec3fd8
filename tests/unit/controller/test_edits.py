"""Settings and prompts that change while a run goes on."""

from pathlib import Path

import pytest

from scope_selfplay.controller.api import Kind
from scope_selfplay.controller.rounds import Controller
from scope_selfplay.errors import ConfigError, ExitCode
from tests.unit.controller.authors import PAPER, config_of
from tests.unit.controller.worlds import ONE, World

STAGE = "i01-train-solver"


@pytest.mark.fault(19)
@pytest.mark.parametrize("edited", [("solver.learning_rate",), ("prompts",), ("seed", "tasks.low")])
def test_an_edit_lets_the_running_stage_end_and_is_then_refused_by_name(
    tmp_path: Path, edited: tuple[str, ...]
) -> None:
    world, controller = _running(tmp_path)
    world.inputs = world.inputs._replace(edited=edited)
    finish = world.drive(controller)
    assert finish.code is ExitCode.USER
    assert finish.message.startswith(f"changed since the run began: {', '.join(edited)};")
    assert list(world.jobs_created) == [f"r1-{STAGE}-a1"]
    assert world.stages.published == [f"{STAGE} by r1-{STAGE}-a1"]
    assert "Edited" in world.reasons


@pytest.mark.fault(19)
def test_an_edit_that_is_put_back_costs_nothing(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    good = world.inputs
    world.inputs = good._replace(edited=("seed",))
    controller.round()
    world.inputs = good
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(19)
def test_settings_that_cannot_be_read_any_more_count_as_an_edit(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)

    def broken() -> None:
        raise ConfigError("run.yaml: not valid YAML")

    controller._read_inputs = broken  # type: ignore[assignment]
    finish = world.drive(controller)
    assert (finish.code, "run.yaml: not valid YAML" in finish.message) == (ExitCode.USER, True)


@pytest.mark.integration
def test_a_longer_run_is_no_edit(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.have_done_all_but(STAGE)
    assert world.drive().code is ExitCode.DONE
    world.inputs = world.inputs._replace(config=config_of(PAPER, iterations=2))
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE
    assert next(name for name in world.jobs_created if "i02" in name) == "r1-i02-train-challenger-a1"


@pytest.mark.fault(19)
def test_a_running_job_that_computes_something_else_is_never_adopted(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    world.inputs = world.inputs._replace(prompt_hash="fedcba9876543210")
    finish = world.drive(controller)
    assert finish.code is ExitCode.USER
    assert finish.message.startswith(f"r1-{STAGE}-a1 was made from other settings or prompts")


def test_a_damaged_marker_ends_the_run_and_frees_the_gpus(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    folder = world.stages.folder.path / "iteration-00" / "compare"
    (folder / "manifest.json").write_text("{")
    finish = world.drive(controller)
    assert (finish.code, "manifest.json: not a manifest" in finish.message) == (ExitCode.USER, True)
    assert world.end_state()["servers"] == []
    assert world.nodes.taken() == 0


def test_a_record_of_attempts_that_was_edited_by_hand_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, ONE)
    world.have_done_all_but(STAGE)
    body = {"metadata": {"name": "r1-status", "labels": {}}, "data": {"ledger": "{"}}
    world.cluster.put(Kind.CONFIG_MAP, body)
    finish = world.drive()
    assert (finish.code, "its ledger cannot be read" in finish.message) == (ExitCode.USER, True)


def _running(root: Path) -> tuple[World, Controller]:
    """A world in which the Job of one stage runs."""
    world = World(root)
    world.have_done_all_but(STAGE, "i01-compare")
    controller = world.controller()
    while not world.status.get("jobs"):
        controller.round()
        world.cluster.advance(5)
    return world, controller
