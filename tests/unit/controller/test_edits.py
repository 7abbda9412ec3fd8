"""Settings and prompts that change while a run goes on."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from scope_selfplay.base.errors import ConfigError, ExitCode
from scope_selfplay.driver.api import ObjectKind
from scope_selfplay.driver.loop import Controller
from scope_selfplay.driver.parts import Inputs, read_inputs
from scope_selfplay.prompts.folder import shipped_prompts
from tests.models import write_model
from tests.unit.controller.examples import PAPER, config_of
from tests.unit.controller.worlds import ONE, World

STAGE = "i01-train-solver"
_MOUNTED = ONE | {"domain": "embedded", "seed": 0, "corpus": {"sample": 16}, "judge": {"kind": "lexical"}}


@pytest.mark.fault(19)
@pytest.mark.parametrize("edited", [("solver.learning_rate",), ("prompts",), ("seed", "tasks.low")])
def test_an_edit_lets_the_running_stage_end_and_is_then_refused_by_name(
    tmp_path: Path, edited: tuple[str, ...]
) -> None:
    world, controller = _running(tmp_path)
    world.inputs = world.inputs._replace(edited=edited)
    run_end = world.drive(controller)
    assert run_end.code is ExitCode.USER
    assert run_end.message.startswith(f"changed since the run began: {', '.join(edited)};")
    assert list(world.jobs_created) == [f"r1-{STAGE}-a1"]
    assert world.stages.published == [f"{STAGE} by r1-{STAGE}-a1"]
    assert "Edited" in world.reasons


@pytest.mark.fault(19)
def test_settings_that_cannot_be_read_any_more_count_as_an_edit(tmp_path: Path) -> None:
    world, is_broken = World(tmp_path), list[bool]()

    def read() -> Inputs:
        if is_broken:
            raise ConfigError("run.yaml: not valid YAML")
        return world.inputs

    controller = world.controller(read=read)
    _run_a_job(world, controller)
    is_broken.append(True)
    end = world.drive(controller)
    assert (end.code, "run.yaml: not valid YAML" in end.message) == (ExitCode.USER, True)


@pytest.mark.integration
def test_a_longer_run_does_not_count_as_an_edit(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE])
    assert world.drive().code is ExitCode.DONE
    world.inputs = world.inputs._replace(config=config_of(PAPER, iterations=2))
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE
    assert next(name for name in world.jobs_created if "i02" in name) == "r1-i02-train-challenger-a1"


@pytest.mark.fault(19)
def test_a_running_job_that_computes_something_else_is_never_adopted(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    world.inputs = world.inputs._replace(prompt_hash="fedcba9876543210")
    run_end = world.drive(controller)
    assert run_end.code is ExitCode.USER
    assert run_end.message.startswith(f"r1-{STAGE}-a1 was made from other settings or prompts")


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("seed: 0", "seed: 7"), "belongs to another config (changed: seed)"),
        (("seed: 0", "sed: 7"), "run.yaml: unknown setting sed;"),
        (("seed: 0", "seed: ["), "run.yaml: not valid YAML"),
        (("name: r1", "name: r2"), "name: found 'r2', this controller's run is 'r1'"),
        (("Task: ", "Question: "), "was begun with prompts"),
    ],
)
def test_a_controller_that_starts_after_an_edit_ends_the_run_as_one_that_saw_it(
    tmp_path: Path, edit: tuple[str, str], said: str
) -> None:
    mounted = _mounted(tmp_path)
    world = World(tmp_path / "runs", _MOUNTED)
    first = world.controller(read=mounted.read)
    _run_a_job(world, first)
    first.stop()
    mounted.replace(*edit)
    second = world.controller(read=mounted.read)
    second.round()
    assert world.nodes.taken() > 0, "the running stage was not let end"
    run_end = world.drive(second)
    assert (run_end.code, said in run_end.message) == (ExitCode.USER, True), run_end.message
    assert list(world.jobs_created) == [f"r1-{STAGE}-a1"]
    assert world.stages.published == [f"{STAGE} by r1-{STAGE}-a1"]
    assert (world.status["phase"], world.nodes.taken()) == ("Failed", 0)
    assert "Edited" in world.reasons


@pytest.mark.fault(19)
def test_an_edit_that_is_put_back_after_a_restart_costs_nothing(tmp_path: Path) -> None:
    mounted = _mounted(tmp_path)
    world = World(tmp_path / "runs", _MOUNTED)
    _run_a_job(world, world.controller(read=mounted.read))
    mounted.replace("seed: 0", "seed: 7")
    controller = world.controller(read=mounted.read)
    controller.round()
    mounted.replace("seed: 7", "seed: 0")
    assert world.drive(controller).code is ExitCode.DONE


def test_settings_that_never_began_a_run_are_refused_at_once(tmp_path: Path) -> None:
    mounted = _mounted(tmp_path)
    mounted.replace("seed: 0", "sed: 7")
    with pytest.raises(ConfigError, match="unknown setting sed;"):
        mounted.read()


def test_a_run_that_is_done_is_not_done_under_other_settings(tmp_path: Path) -> None:
    world = World(tmp_path, only=["nothing"])
    world.inputs = world.inputs._replace(edited=("seed",))
    run_end = world.drive()
    assert (run_end.code, run_end.message[:35]) == (ExitCode.USER, "changed since the run began: seed; ")


def test_a_damaged_manifest_ends_the_run_and_frees_the_gpus(tmp_path: Path) -> None:
    world, controller = _running(tmp_path)
    folder = world.stages.folder.path / "iteration-00" / "compare"
    (folder / "manifest.json").write_text("{")
    run_end = world.drive(controller)
    assert (run_end.code, "manifest.json: damaged" in run_end.message) == (ExitCode.USER, True)
    assert world.end_state()["servers"] == []
    assert world.nodes.taken() == 0


def test_a_record_of_attempts_that_was_edited_by_hand_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, ONE, only=[STAGE])
    body = {"metadata": {"name": "r1-status", "labels": {}}, "data": {"ledger": "{"}}
    world.cluster.put(ObjectKind.CONFIG_MAP, body)
    run_end = world.drive()
    assert (run_end.code, "its ledger cannot be read" in run_end.message) == (ExitCode.USER, True)


class Mounted(NamedTuple):
    """A run's settings and prompts as its controller's pod has them, and the volume."""

    folder: Path
    runs: Path

    def read(self) -> Inputs:
        return read_inputs(self.folder / "run.yaml", self.runs, self.folder / "prompts", (), name="r1")

    def replace(self, old: str, new: str) -> None:
        """Edit the settings, and the Solver's prompt."""
        files = (self.folder / "run.yaml", self.folder / "prompts" / "embedded" / "solver.md")
        assert any(old in file.read_text() for file in files)
        for file in files:
            file.write_text(file.read_text().replace(old, new))


def _mounted(root: Path) -> Mounted:
    shutil.copytree(shipped_prompts() / "embedded", root / "mounted" / "prompts" / "embedded")
    model = write_model(root / "model")
    settings = _MOUNTED | {"model": {"path": str(model)}}
    (root / "mounted" / "run.yaml").write_text(yaml.safe_dump(settings))
    return Mounted(root / "mounted", root / "runs")


def _run_a_job(world: World, controller: Controller) -> None:
    world.have_done_all_but(STAGE, "i01-compare")
    world.go_until(controller, lambda: world.status.get("jobs"))


def _running(root: Path) -> tuple[World, Controller]:
    """A world in which the Job of one stage runs."""
    world = World(root)
    controller = world.controller()
    _run_a_job(world, controller)
    return world, controller
