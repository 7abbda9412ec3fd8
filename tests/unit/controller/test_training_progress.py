"""What the status says of a training that goes on."""

import json
import re
from pathlib import Path

import pytest

from scope_selfplay.base.intervals import Estimate
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.driver.metrics import TRAINING, RunCollector
from scope_selfplay.driver.parts import training_progress
from scope_selfplay.store.columns import TaskTarget
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import Ratings
from tests.unit.controller.examples import PAPER, config_of
from tests.unit.controller.worlds import World


def write_rows(folder: RunFolder, stage: Stage, count: int, tail: str = "") -> None:
    metrics = folder.stage(1, stage).metrics
    metrics.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": number, "step_seconds": 90.0 + number, "reward": 0.5} for number in range(1, count + 1)]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_step_rate_time_left_and_reward_are_one_line(tmp_path: Path) -> None:
    config, folder = config_of(PAPER), RunFolder(tmp_path / "r1")
    assert training_progress(folder, config, RunStage(1, Stage.SOLVER)) == ""
    write_rows(folder, Stage.SOLVER, 10, tail='{"step": 11, "rew')
    line = training_progress(folder, config, RunStage(1, Stage.SOLVER))
    assert config.solver.steps == 20
    assert line == "step 10 of 20, 98 s a step, about 16 min left, reward 0.500"
    longer = config_of(PAPER, solver={"steps": 200})
    line = training_progress(folder, longer, RunStage(1, Stage.SOLVER))
    assert line == "step 10 of 200, 98 s a step, about 5.2 h left, reward 0.500"
    write_rows(folder, Stage.SOLVER, 3000)
    assert training_progress(folder, config, RunStage(1, Stage.SOLVER)).startswith("step 3000 of")
    assert training_progress(folder, config, RunStage(1, Stage.TASKS)) == ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, only=["i01-train-solver", "i01-compare"])


def test_the_status_follows_the_training_and_drops_the_line_after_it(world: World) -> None:
    controller = world.controller()
    controller.round()
    assert "training" not in world.status
    write_rows(world.stages.folder, Stage.SOLVER, 2)
    controller.round()
    assert world.status["training"].startswith("step 2 of ")
    world.drive(controller)
    assert "training" not in world.status


def test_a_volume_that_may_become_full_is_told_while_the_stage_says_so(world: World) -> None:
    controller = world.controller()
    controller.round()
    note = world.stages.folder.stage(1, Stage.SOLVER).room
    note.parent.mkdir(parents=True)
    note.write_text("r1: 10.0 GiB are free on its volume\n")
    controller.round()
    assert world.status["volume"] == "r1: 10.0 GiB are free on its volume"
    note.unlink()
    world.drive(controller)
    assert "volume" not in world.status
    assert world.reasons.count("LittleRoom") == 1


def test_prometheus_sees_what_the_run_has_reached(world: World) -> None:
    folder = world.stages.folder
    write_rows(folder, Stage.SOLVER, 7, tail='{"step": 8, "rew')
    seen = read_metrics(folder, world)
    assert seen["scope_run_stages_done", ()] == seen["scope_run_stages", ()] - 2
    here = ("01", "train-solver")
    assert seen["scope_run_stage", here] == 1 and seen["scope_training_step", here] == 7
    assert seen["scope_training_reward", here] == 0.5 and ("scope_training_kl", here) not in seen
    held_out = Estimate(value=0.25, low=None, high=None, items=1)
    ratings = Ratings(promoted=True, ratings={"S_0": 0.0}, held_out={"S_0": {"all": held_out}})
    folder.stage(0, Stage.COMPARE).ratings.write_text(ratings.model_dump_json())
    seen = read_metrics(folder, world)
    assert seen["scope_run_rating", ("S_0",)] == 0 and seen["scope_run_held_out_score", ("S_0",)] == 0.25
    # Damage is for the controller to tell; the rest is still shown.
    (folder.stage(0, Stage.TASKS).path / "manifest.json").write_text("{")
    assert read_metrics(folder, world)["scope_run_stages_done", ()] == seen["scope_run_stages_done", ()] - 1


def read_metrics(folder: RunFolder, world: World) -> dict[tuple[str, tuple[str, ...]], float]:
    families = RunCollector(folder, world.config).collect()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_columns_shown_are_columns_that_a_training_writes() -> None:
    """What training names its columns stands in modules that a controller may not import."""
    training = Path(__file__).parents[3] / "scope_selfplay" / "training"
    source = "".join((training / f"{name}.py").read_text() for name in ("loop", "metrics"))
    assert set(TRAINING) <= set(re.findall(r'"([a-z_]+)": ', source))


def test_the_status_says_which_iterations_ended_below_their_target(tmp_path: Path) -> None:
    world = World(tmp_path)
    controller = world.controller()
    while controller.round() is None:
        world.cluster.advance(10)
        for iteration, accepted in ((1, 3000), (2, 5120)):
            folder = world.stages.folder.stage(iteration, Stage.TASKS)
            if folder.manifest is not None:
                reached = TaskTarget(accepted=accepted, target=5120)
                write_atomic(folder.target, reached.model_dump_json())
    assert world.status["below_target"] == "iteration 1: 3000 of 5120 tasks"
